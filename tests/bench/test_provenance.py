"""What a report says of where and how it was made."""

import json
import re
import subprocess

import pytest
from msgspec import convert

from dear_mpi.bench import saved as module
from dear_mpi.bench.machine_file import MachineFile
from dear_mpi.bench.output import object_of
from dear_mpi.bench.saved import commit, now, provenance
from dear_mpi.ranks.world import run_world
from tests.bench.test_bench import row

SETTINGS = {"OMPI_MCA_btl": "tcp,self", "UCX_TLS": "tcp", "OMP_NUM_THREADS": "1", "PMIX_MCA_gds": "hash"}
OTHERS = {
    "HOME": "/somewhere", "GITHUB_TOKEN": "x", "UCX_KEY": "x", "NCCL_AUTH_TOKEN": "x", "SLURM_JWT": "x",
    "OMPI_COMM_WORLD_RANK": "0", "PMIX_SERVER_URI41": "x", "XUCX_TLS": "x",
}  # fmt: skip


def test_settings_are_told_and_nothing_else_of_the_environment(monkeypatch):
    monkeypatch.setattr("os.environ", SETTINGS | OTHERS)
    assert run_world(lambda world: provenance(world, "then"), threads=1)["environment"] == SETTINGS


def test_all_ranks_say_the_same_and_it_is_json(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "commit", lambda package: asked.append(package) or f"number {len(asked)}")
    said = run_world(lambda world: world.transport.gather_values(provenance(world, "then")), threads=3)
    assert said[1:] == said[:-1]
    assert said[0]["commit"] == "number 1"
    assert len(asked) == 1, "git is asked by rank 0 alone"
    found = json.loads(json.dumps(said[0], allow_nan=False))
    assert (found["date"], found["hosts"], found["mpi"]) == ("then", [3], "loopback (threads)")
    assert found["clock"]["resolution_s"] > 0
    assert all(each["cores"] for each in found["ranks"])


def test_hosts_that_differ_are_all_named(monkeypatch):
    answers = [("a", [0], "this CPU", "Linux 6", "bbr", "c"), ("b", [1], "that CPU", "Linux 6", "reno", None)]

    class Transport:
        name = "Open MPI"
        gather_values = staticmethod(lambda mine: answers)

    world = type("", (), {"transport": Transport, "ranks_per_host": [1, 1], "rank": 1})
    found = provenance(world, "then")
    assert (found["cpu"], found["kernel"]) == ("this CPU; that CPU", "Linux 6")
    assert (found["congestion_control"], found["commit"]) == ("bbr; reno", "c")
    assert found["ranks"] == [{"host": "a", "cores": [0]}, {"host": "b", "cores": [1]}]


@pytest.fixture
def checkout(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    identity = ["-c", "user.name=x", "-c", "user.email=x@y.z"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return package


def test_a_checkout_has_a_commit(checkout):
    assert re.fullmatch(r"[0-9a-f]{10}, unchanged", commit(checkout))
    (checkout / "__init__.py").write_text("x = 1")
    assert commit(checkout).endswith(", with changes that are in no commit")


def test_what_is_installed_has_none(checkout, tmp_path, monkeypatch):
    """Neither beside a checkout, nor inside one that ignores it; nor where there is no git."""
    installed = checkout / "site-packages"
    installed.mkdir()
    (installed / "__init__.py").touch()
    assert commit(installed) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(checkout) is None


def test_a_report_can_be_read_as_a_machine_file():
    """``simulate`` reads rows from it; the places of its ranks are as in the doctor's."""
    found = run_world(lambda world: provenance(world, now()), threads=2)
    read = convert({**found, "rows": [object_of(row("ring", 64), raw=True)]}, MachineFile)
    assert [place.host for place in read.ranks] == [found["host"]] * 2
    assert read.rows == [row("ring", 64)]
