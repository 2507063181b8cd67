"""The batch scripts of hostfiles/ in a real Slurm with two nodes on this machine: `make test-slurm`.

Needs what tests/slurm.py says; elsewhere it is skipped. No figure is judged: the two nodes share the cores.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from dear_mpi.cli.commands import find_command
from tests.rooms import ROOT
from tests.slurm import NODES, PACKAGES, slurm, why_not

LAUNCHERS = {"srun": "Slurm's srun", "mpirun": "Open MPI's mpirun"}
LIMIT_S = 300
# Ranks that wait give their core away, which two nodes share. root may start ranks. The PMIx of a wheel has no munge.
SETTINGS = {
    "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PMIX_MCA_psec": "native", "PYTHONPATH": str(ROOT),
}  # fmt: skip
FAILS = """
from dear_mpi.collectives import barrier
from dear_mpi.ranks.world import run_world

def body(world):
    barrier(world.transport)
    assert world.rank != 3, "on purpose"
    while True:
        barrier(world.transport)

run_world(body)
"""


@dataclass(frozen=True)
class Here:
    """The Slurm, and a folder for what jobs write."""

    environment: dict[str, str]
    folder: Path

    def submit(self, launcher, *command, ranks=2, cores=1, **variables):
        """Run a batch script to its end; returns (exit code, what it said)."""
        said = self.folder / "said"
        wishes = [f"--ntasks-per-node={ranks}", f"--cpus-per-task={cores}", f"--output={said}", "--time=3", "--wait"]
        job = subprocess.run(
            ["sbatch", *wishes, f"{ROOT}/hostfiles/slurm-{launcher}.sbatch", *map(str, command)], cwd=ROOT,
            env=self.environment | variables, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        return job.returncode, job.stdout + job.stderr + (said.read_text() if said.exists() else "")

    def first_run(self, launcher, steps, **wishes):
        results = self.folder / f"results-{launcher}"
        code, said = self.submit(launcher, STEPS=" ".join(steps), RESULTS=str(results), **wishes)
        assert code == 0, said
        return {step: json.loads((results / f"{step}.json").read_text()) for step in steps}


@pytest.fixture(scope="session")
def nodes():
    if reason := why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurm(Path(folder)) as environment:
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        path = {"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"}
        yield kept | SETTINGS | environment | path


@pytest.fixture
def here(nodes, tmp_path):
    return Here(nodes, tmp_path)


@pytest.fixture
def pmix(nodes):
    done = subprocess.run(["srun", "--mpi=list"], env=nodes, capture_output=True, text=True, check=True)
    if "pmix" not in done.stdout + done.stderr:
        pytest.skip(f"Slurm cannot load its plugin pmix here ({PACKAGES})")


@pytest.fixture(params=LAUNCHERS)
def launcher(request):
    if request.param == "srun":
        request.getfixturevalue("pmix")
    return request.param


def test_ranks_of_both_nodes_train_to_the_same_bits(here, pmix):
    """Under both launchers: what the ranks compute does not depend on what has started them."""
    steps = [step for step in ("doctor", "links", "train") if find_command(step)]
    hashes = set()
    for launcher, name in LAUNCHERS.items():
        found = here.first_run(launcher, steps)
        assert found["doctor"]["launch"]["launcher"] == name
        assert [rank["host"] for rank in found["doctor"]["ranks"]] == [node for node in NODES for _ in range(2)]
        assert found["train"]["ranks"] == 4
        assert found["train"]["accuracy"] > 0.9
        hashes.add(found["train"]["params_sha256"])
    assert len(hashes) == 1


def test_three_ranks_of_a_node_come_through_mpi_init(nodes, pmix):
    """One did not, where nodes had the name of the machine."""
    flags = ["--nodes=1", "--ntasks=3", "--overcommit", "--mpi=pmix", "--time=3"]
    job = subprocess.run(
        ["srun", *flags, "dear-mpi", "doctor"], env=nodes, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert job.returncode == 0, job.stdout + job.stderr
    assert "3 ranks on 1 host" in job.stdout


def test_a_rank_has_a_core_to_communicate(here, launcher):
    found = here.first_run(launcher, ["doctor"], ranks=1, cores=2)["doctor"]
    assert [rank["host"] for rank in found["ranks"]] == list(NODES)
    assert [len(rank["cores"]) for rank in found["ranks"]] == [2, 2]


def test_a_rank_is_bound_to_its_core(here, launcher):
    """And the two ranks of a node to different ones."""
    found = here.first_run(launcher, ["doctor"])["doctor"]
    for node in NODES:
        bound = [tuple(rank["cores"]) for rank in found["ranks"] if rank["host"] == node]
        assert sorted(map(len, bound)) == [1, 1]
        assert len(set(bound)) == 2


def test_a_command_of_ones_own(here, launcher):
    file = here.folder / "bench.json"
    flags = ["--sizes", "1KiB", "--algorithms", "ring,native", "--budget", "0.2s", "--json", file]
    code, said = here.submit(launcher, "dear-mpi", "bench", *flags)
    assert code == 0, said
    rows = json.loads(file.read_text())["rows"]
    assert [(row["algorithm"], row["ranks"], row["wrong"]) for row in rows] == [("ring", 4, 0), ("native", 4, 0)]


def test_a_rank_that_fails_ends_the_job(here, launcher):
    code, said = here.submit(launcher, "python", "-c", FAILS)
    assert code != 0
    assert "rank 3 failed: AssertionError: on purpose" in said
    assert "DUE TO TIME LIMIT" not in said
