"""Whether device memory goes to MPI: how a probe may end, and what follows from it; without MPI and without a GPU."""

import os
import subprocess
import sys

import pytest

from dear_mpi.collectives.launch.cuda_aware import DeviceMemory, decision, loaded, probe
from dear_mpi.collectives.launch.launcher import child_environment


def python(code):
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("name", [
    *("OMPI_COMM_WORLD_RANK", "OMPI_UNIVERSE_SIZE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess", "PMIX_RANK"),
    *("PMIX_SERVER_URI41", "PMI_FD", "PMI_RANK", "PRTE_LAUNCHED", "HYDI_CONTROL_FD", "HYDRA_LAUNCHER"),
    *("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID", "SLURM_STEP_ID", "PALS_RANKID"),
])  # fmt: skip
def test_the_child_is_no_rank_of_the_job(name):
    assert name not in child_environment({name: "1"})


ENDS = [
    ("pass", True, "the probe sent and received device memory"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", False, "the probe died of SIGSEGV"),
    ("raise RuntimeError('on purpose')", False, "the probe failed with status 1: RuntimeError: on purpose"),
    ("import sys; sys.exit(3)", False, "the probe failed with status 3: it printed nothing"),
]


@pytest.mark.parametrize(("code", "ok", "reason"), ENDS, ids=lambda value: str(value)[:20])
def test_ends_of_a_probe(code, ok, reason):
    assert probe(command=python(code)) == DeviceMemory(ok, reason)


def test_a_probe_that_hangs_is_killed_with_all_that_it_started(tmp_path):
    numbers = tmp_path / "numbers"
    code = f"""
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"])
open({str(numbers)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(1000)
"""
    assert probe(4, command=python(code)) == DeviceMemory(False, "the probe did not end within 4 s")
    for number in map(int, numbers.read_text().split()):
        assert not runs(number), number


def runs(number):
    """Whether there is such a process; one that is over and was not yet collected by its parent is none."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(number)], capture_output=True, text=True, check=False)
    return state.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
def test_children_run_nothing_from_the_working_directory(tmp_path, here):
    """The probe and other jobs, which all have this environment."""
    (tmp_path / "mpi4py.py").write_text("open('ran', 'w')")
    for way in (("-c", "import mpi4py"), ("-m", "mpi4py")):
        subprocess.run([sys.executable, *way], env=child_environment(os.environ), capture_output=True, check=False)
    assert not (tmp_path / "ran").exists()


def test_loaded(tmp_path):
    maps = tmp_path / "maps"
    line = "7f00-7f01 r-xp 00000000 08:01 123  "
    names = ["/opt/my mpi/libmpi.so.40", "/opt/cray/libmpi_gnu.so.12", "/lib/libmpicxx.so.1", "/lib/libc.so.6", ""]
    maps.write_text("".join(f"{line}{name}\n" for name in names + names[:1]))
    assert loaded("libmpi", maps) == ["/opt/cray/libmpi_gnu.so.12", "/opt/my mpi/libmpi.so.40"]
    assert loaded("libucp", maps) == loaded("libmpi", tmp_path / "none") == []
    assert loaded("libc") or loaded("ld-linux")  # those of this process


GOOD, CRASHED = (
    DeviceMemory(True, "the probe sent and received device memory"),
    DeviceMemory(False, "the probe died of SIGSEGV"),
)
STAGED = "staged through pinned host memory"

DECISIONS = [
    ([("direct", "a", None)], (True, "direct: device memory goes to MPI (as asked, not probed)")),
    ([("staged", "a", None)], (False, f"{STAGED} (as asked)")),
    ([("auto", "a", GOOD), ("auto", "a", None)], (True, "direct: device memory goes to MPI (probed)")),
    ([("auto", "a", CRASHED), ("auto", "a", None)], (False, f"{STAGED}: the probe died of SIGSEGV")),
    ([("auto", "a", GOOD), ("auto", "b", CRASHED)], (False, f"{STAGED}: on host b, the probe died of SIGSEGV")),
    (
        [("auto", "a", GOOD), ("auto", "b", CRASHED), ("auto", "c", CRASHED), ("auto", "c", None)],
        (False, f"{STAGED}: on host b, the probe died of SIGSEGV"),
    ),
]


@pytest.mark.parametrize(("answers", "expected"), DECISIONS)
def test_decision(answers, expected):
    assert decision(answers) == DeviceMemory(*expected)
