"""Scripts as people have them, with at most four changed lines: they end as on one process with the whole batch."""

import difflib
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="DistributedOptimizer needs torch (our extra 'torch')")

import dear_mpi.torch as dear  # noqa: E402
from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402
from dear_mpi.torch import optimizer as front  # noqa: E402
from dear_mpi.torch import updates  # noqa: E402
from dear_mpi.torch.updates import scope_of  # noqa: E402
from tests.launch import mpis_at_hand  # noqa: E402

FOLDER = Path(__file__).parent / "scripts"
EVERY = bool(os.environ.get("EVERY"))
IMPORT = "import sys\n", "import sys\nimport dear_mpi.torch as dear\n"
RANKS = "rank, size = 0, 1\n", "rank, size = dear.rank(), dear.size()\n"
CHANGES = {
    "cnn": [
        ("scheduler =", "optimizer = dear.DistributedOptimizer(optimizer, model, clip=0.5)\nscheduler ="),
        ("        nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n", ""),
    ],
    "gpt": [("losses = []\n", "optimizer = dear.DistributedOptimizer(optimizer, model, accumulate=2)\nlosses = []\n")],
    "hub": [("losses = []\n", "optimizer = dear.DistributedOptimizer(optimizer, model)\nlosses = []\n")],
}
# The sums of bf16 depend on the rows that a rank has; the rest is rounding in fp32, which Adam's first steps enlarge.
TOLERANCES = {"cnn": 5e-2, "gpt": 5e-4, "hub": 1e-4}


def changed(name):
    text = found = (FOLDER / f"{name}.py").read_text("utf-8")
    for old, new in (IMPORT, RANKS, *CHANGES[name]):
        assert found.count(old) == 1
        found = found.replace(old, new)
    lines = [line for line in difflib.ndiff(text.splitlines(), found.splitlines()) if line[0] in "+-"]
    assert len(lines) <= 5  # one of them is changed, so it counts once
    return found


def run(code, path):
    exec(compile(code.replace("sys.argv[1]", repr(str(path))), "script", "exec"), {"__name__": "__main__"})


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    for name in CHANGES:
        run((FOLDER / f"{name}.py").read_text("utf-8"), folder / name)
    return {name: torch.load(folder / name) for name in CHANGES}


def compare(name, found, wanted):
    assert wanted["losses"][-1] < 0.95 * wanted["losses"][0]
    tolerance = TOLERANCES[name]
    torch.testing.assert_close(found["losses"], wanted["losses"], rtol=tolerance, atol=0)
    for key, value in wanted["model"].items():
        torch.testing.assert_close(found["model"][key], value, rtol=tolerance, atol=tolerance)
    assert found["optimizer"]["param_groups"] == wanted["optimizer"]["param_groups"]
    for number, state in wanted["optimizer"]["state"].items():
        for key, value in state.items():
            torch.testing.assert_close(found["optimizer"]["state"][number][key], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", CHANGES)
def test_scripts_on_threads(name, size, plain, tmp_path, monkeypatch):
    own, one = threading.local(), threading.Lock()  # until each has drawn its parameters

    def started():
        one.release()
        return SimpleNamespace(Dup=lambda: own.transport)

    def alone(optimizer):  # a trial puts the random numbers of this process back, while other ranks may draw
        with one:
            return scope_of(optimizer)

    monkeypatch.setattr(updates, "scope_of", alone)
    monkeypatch.setattr(front, "started", started)
    monkeypatch.setattr(dear, "rank", lambda: own.transport.rank)
    monkeypatch.setattr(dear, "size", lambda: own.transport.size)
    code = changed(name)

    def body(transport):
        own.transport = transport
        one.acquire()
        run(code, tmp_path / "found")

    run_loopback(size, body)
    compare(name, torch.load(tmp_path / "found"), plain[name])


SAMPLE = [("cnn", 2, 0), ("gpt", 3, 1), ("hub", 4, 0)]
ALL = [(name, size, mpi) for name in CHANGES for size in (1, 2, 3, 4, 5) for mpi in (0, 1)]


@pytest.mark.parametrize(("name", "size", "mpi"), ALL if EVERY else SAMPLE)
def test_scripts_under_mpi(name, size, mpi, plain, tmp_path):
    found = mpis_at_hand()
    if mpi >= len(found):
        pytest.skip("there is one MPI")
    (script := tmp_path / f"{name}.py").write_text(changed(name))
    command = [
        *found[mpi].mpirun,
        "-n",
        str(size),
        sys.executable,
        "-m",
        "mpi4py",
        str(script),
        str(tmp_path / "found"),
    ]
    environment = found[mpi].environment(size) | {"OMP_NUM_THREADS": "1"}
    job = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert job.returncode == 0, job.stderr
    compare(name, torch.load(tmp_path / "found"), plain[name])
