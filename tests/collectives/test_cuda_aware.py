"""Whether device memory goes to MPI: how a probe may end, and what follows from it; without MPI and without a GPU."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dear_mpi.collectives.launch.cuda_aware import (
    DeviceMemory,
    decision,
    probe,
)
from dear_mpi.collectives.launch.launcher import child_environment
from dear_mpi.collectives.launch.mpi_facts import loaded, without_pmix
from dear_mpi.collectives.program.errors import ArgumentError, MismatchError
from dear_mpi.kernels.gpu import current_gpu, use_gpu


def python(code):
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    "name",
    [
        *("OMPI_COMM_WORLD_RANK", "OMPI_UNIVERSE_SIZE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess", "PMIX_RANK"),
        *("PMIX_SERVER_URI41", "PMI_FD", "PMI_RANK", "PRTE_LAUNCHED", "HYDI_CONTROL_FD", "HYDRA_LAUNCHER"),
        *("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID", "SLURM_STEP_ID", "PALS_RANKID"),
    ],
)
def test_the_child_is_no_rank_of_the_job(name):
    assert name not in child_environment({name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        *("OMPI_MCA_pml", "OMPI_MCA_opal_cuda_support", "UCX_TLS", "MPI4PY_LIBMPI", "MPIR_CVAR_ENABLE_GPU"),
        *("PMIX_MCA_gds", "PRTE_MCA_ras", "OPAL_PREFIX", "PMIX_PREFIX", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
        *("MPICH_GPU_SUPPORT_ENABLED", "FI_PROVIDER", "I_MPI_OFFLOAD"),
    ],
)
def test_the_child_has_the_settings_of_the_job(name):
    assert child_environment({name: "1"})[name] == "1"


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


def test_a_probe_that_leaves_a_process_behind_does_not_hang(tmp_path):
    """Its output stays open in that process, which is still there when the probe has its answer."""
    file = tmp_path / "number"
    code = f"import subprocess; open({str(file)!r}, 'w').write(str(subprocess.Popen(['sleep', '1000']).pid))"
    assert probe(command=python(code)).direct
    number = int(file.read_text())
    assert runs(number)
    os.kill(number, signal.SIGKILL)


def test_a_probe_that_cannot_be_started(tmp_path):
    command = str(tmp_path / "none")
    found = probe(command=[command])
    assert found == DeviceMemory(False, f"the probe could not be run: [Errno 2] No such file or directory: {command!r}")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
def test_children_run_nothing_from_the_working_directory(monkeypatch, tmp_path):
    """The probe, the trial of the library, and other jobs, which all have this environment."""
    (tmp_path / "mpi4py.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    without_pmix()
    for way in (("-c", "import mpi4py"), ("-m", "mpi4py")):
        subprocess.run([sys.executable, *way], env=child_environment(os.environ), capture_output=True, check=False)
    assert not (tmp_path / "ran").exists()


def test_without_cupy_nothing_is_started(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # as where it is not installed
    monkeypatch.setattr(subprocess, "Popen", None)
    assert probe().why.startswith("the probe could not be run: CuPy is not installed (pip install cupy-")


GPUS = {
    "raise RuntimeError('cudaErrorNoDevice')": "there is no GPU that can be used: cudaErrorNoDevice",
    "return 0": "there is no GPU that can be used: CUDA finds none",
}


@pytest.mark.parametrize("code", GPUS)
def test_cupy_without_a_gpu(monkeypatch, code):
    namespace = {}
    exec(f"def getDeviceCount():\n {code}", namespace)
    runtime = SimpleNamespace(getDeviceCount=namespace["getDeviceCount"])
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Device=None)))
    with pytest.raises(ValueError, match=f"^{GPUS[code]}"):
        current_gpu()
    use_gpu(0)  # says nothing


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
    (
        [("auto", "a", GOOD), ("auto", "b", CRASHED)],
        (False, f"{STAGED}: on host b, the probe died of SIGSEGV"),
    ),
    (
        [("auto", "a", GOOD), ("auto", "b", CRASHED), ("auto", "c", CRASHED), ("auto", "c", None)],
        (False, f"{STAGED}: on host b, the probe died of SIGSEGV"),
    ),
]


@pytest.mark.parametrize(("answers", "expected"), DECISIONS)
def test_decision(answers, expected):
    assert decision(answers) == DeviceMemory(*expected)


def test_ranks_that_ask_for_different_things():
    with pytest.raises(MismatchError, match="device_memory must be the same on all ranks, not auto and staged"):
        decision([("staged", "a", None), ("auto", "a", GOOD)])


def test_an_unknown_override():
    with pytest.raises(ArgumentError, match="device_memory 'stagd' is unknown: did you mean 'staged'"):
        decision([("stagd", "a", None)] * 2)


def test_the_real_child_fails_in_words():
    """No machine has a GPU of this number."""
    found = probe(command=[sys.executable, "-m", "dear_mpi.collectives.launch.cuda_aware", "1000", "30"])
    assert not found.direct
    assert found.why.startswith("the probe failed with status 1: ")
