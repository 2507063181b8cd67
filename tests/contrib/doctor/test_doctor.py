"""The doctor's findings on made-up jobs, and the command where there is no MPI and no GPU."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from dear_mpi.bench.machine_file import Link
from dear_mpi.collectives.launch.cuda_aware import DeviceMemory
from dear_mpi.collectives.launch.launcher import Launch, launch_of
from dear_mpi.collectives.transports import shared_memory
from dear_mpi.contrib.doctor import examine
from dear_mpi.contrib.doctor.examine import Facts, RankFacts, mtus, shared_huge_pages
from dear_mpi.contrib.doctor.findings import SEVERITIES, findings
from dear_mpi.contrib.doctor.library import MpiFacts
from dear_mpi.contrib.doctor.show import as_object, show_doctor
from dear_mpi.kernels.array import Gpu
from tests.cli_checks import invoke

MPI = MpiFacts("Open MPI v5.0.11", "", "3.1", "MPI_THREAD_MULTIPLE", True, 0, 2, "a", 0, 2)
DIRECT = DeviceMemory(True, "direct: device memory goes to MPI (probed)")
STAGED = DeviceMemory(False, "staged through pinned host memory: the probe died of SIGSEGV")
H200 = Gpu(0, 2, "H200", "0000:01:00.0")


def rank(number, **changes):
    cores = (2 * number, 2 * number + 1)
    healthy = RankFacts(number, "a", number, 2, number, cores, 8, 2, True, "collapsed on demand (enabled madvise)")
    return replace(healthy, **changes)


def job(*ranks, **changes):
    ranks = list(ranks) or [rank(0), rank(1)]
    healthy = Facts(Launch("Open MPI's mpirun", 2, 0, 0), MPI, ranks, links=links("host", 10.0))
    return replace(healthy, **changes)


def links(path, speed):
    figures = path, 2.0, 8, 100, speed, 4 << 20, 10, 1.9, 2.2, speed / 2, speed * 1.1
    return [Link(0, 1, *figures), Link(1, 0, *figures)]


def with_gpus(*gpus, **changes):
    return job(*(rank(number, gpu=gpu) for number, gpu in enumerate(gpus)), **{"probed": DIRECT} | changes)


SOFTWARE = {"Python": "3.12.1", "NumPy": "2.1", "mpi4py": "4.0", "the MPI library": "MPICH 5", "dear-mpi": "0.1.0"}
ONE = {"mtus": {"eth0": 9000}, "kernel": "Linux 6.1", "congestion": "cubic"}
OTHERS = {"mtus": {"ens3": 1500}, "kernel": "Linux 6.12", "congestion": "reno", "host_cores": 64}
OTHER = replace(H200, number=1, address="0000:02:00.0")
PAIR = (H200, OTHER)

CASES = {
    "healthy": (job(), []),
    "healthy with GPUs": (with_gpus(*PAIR, device_memory=DIRECT, links=links("host", 10) + links("device", 40)), []),
    "no MPI": (job(mpi=None, problem="cannot load MPI library"), ["broken: no MPI library can be used: cannot load"]),
    "other launcher": (
        job(mpi=replace(MPI, size=1), launch=Launch("Hydra", 4)),
        ["broken: 4 ranks were launched by Hydra, and each believes that it is alone"],
    ),
    "thread level": (
        job(mpi=replace(MPI, thread_level="MPI_THREAD_FUNNELED", threads_suffice=False)),
        ["broken: MPI was started with MPI_THREAD_FUNNELED"],
    ),
    "no GPU where one is wanted": (
        job(rank(0, gpu_problem="CuPy is not installed"), rank(1, gpu=H200), device="cuda"),
        ["broken: --device cuda, but rank 0 has no GPU: CuPy is not installed"],
    ),
    "GPUs on some ranks": (
        job(rank(0, gpu_problem="there is no GPU"), rank(1, gpu=H200)),
        ["warning: rank 0 has no GPU, the others do: there is no GPU"],
    ),
    "one GPU for two": (with_gpus(H200, H200), ["warning: ranks 0-1 share one GPU (H200, 0000:01:00.0 of a)"]),
    "a crash to come": (
        with_gpus(*PAIR, probed=STAGED, device_memory=DeviceMemory(True, "direct: (as asked, not probed)")),
        ["broken: --device-memory direct, but MPI does not take device memory here (staged through pinned"],
    ),
    "staged": (
        with_gpus(*PAIR, probed=STAGED, device_memory=STAGED),
        ["warning: device memory is staged through pinned host memory: the probe died of SIGSEGV"],
    ),
    "staged as asked": (
        with_gpus(*PAIR, device_memory=DeviceMemory(False, "staged through pinned host memory (as asked)")),
        [],
    ),
    "slow device path": (
        with_gpus(*PAIR, links=links("host", 10.0) + links("device", 4.0)),
        ["warning: device memory (device) travels at less than half the speed of host memory from rank 0"],
    ),
    "crowd": (
        job(*(rank(number, cores=(0,), host_cores=1, blas_threads=1) for number in range(2))),
        ["warning: 2 ranks of a have 1 core together"],
    ),
    "bound": (
        job(*(rank(number, cores=(number,), blas_threads=1) for number in range(2))),
        [
            "warning: ranks 0-1 are bound to one core",
            "note: 2 ranks of a: in training, where each rank has 2 threads, waiting ranks sleep (4 threads, 2 cores)",
        ],
    ),
    "a cgroup that allows less than the cores": (
        job(*(rank(number, limit=("/", 3.0)) for number in range(2))),
        ["note: 2 ranks of a: in training, where each rank has 2 threads, waiting ranks sleep (4 threads, 3 cores)"],
    ),
    "containers of one machine": (
        job(*(rank(number, host="ab"[number], cores=(0, 1, 2), limit=("ab"[number], 2.0)) for number in range(2))),
        ["note: 2 ranks of a, b: in training, where each rank has 2 threads, waiting ranks sleep (4 threads, 3 cores)"],
    ),
    "hosts of a core for each rank": (
        job(
            *(
                rank(number, host="ab"[number], machine="ab"[number], cores=(0,), host_cores=1, blas_threads=1)
                for number in range(2)
            )
        ),
        [
            f"note: 1 rank of {host}: in training, where each rank has 2 threads, waiting ranks sleep (2 threads, 1 co"
            for host in "ab"
        ],
    ),
    "BLAS": (
        job(*(rank(number, cores=tuple(range(4)), blas_threads=4) for number in range(2))),
        ["warning: NumPy's linear algebra would start 8 threads on the 4 cores of a -> export OMP_NUM_THREADS=2"],
    ),
    "small pages": (
        job(*(rank(number, huge_pages=False, huge_pages_text="none: MADV_COLLAPSE says no") for number in range(2))),
        ["note: memory that the ranks of a share has small pages: none: MADV_COLLAPSE says no"],
    ),
    "a TCP that pauses": (
        job(rank(0, congestion="bbr"), rank(1, host="b", local_rank=0, launched_local_rank=0, congestion="bbr")),
        ["note: TCP of ranks 0-1 is controlled by bbr"],
    ),
    "a TCP that nobody uses": (job(rank(0, congestion="bbr"), rank(1, congestion="bbr")), []),
    "other software": (
        job(rank(0, software=SOFTWARE), rank(1, software=SOFTWARE | {"NumPy": "1.26", "dear-mpi": "0.0.9"})),
        [
            "warning: ranks differ in NumPy: 2.1 on a (rank 0); 1.26 on a (rank 1)",
            "warning: ranks differ in dear-mpi: 0.1.0 on a (rank 0); 0.0.9 on a (rank 1)",
        ],
    ),
    "hosts that differ": (
        job(
            *(rank(number, **ONE) for number in range(2)),
            *(rank(number, host=f"b{number}", machine="b", **OTHERS) for number in range(2, 7)),
        ),
        [
            "warning: ranks differ in the MTU of their interfaces: 9000 on a (ranks 0-1); "
            "1500 on b2, b3, b4 and 2 more hosts (ranks 2-6)",
            "note: ranks differ in the number of cores: 2 of 8 on a (ranks 0-1); 2 of 64 on b2, b3, b4",
            "note: ranks differ in TCP's congestion control: cubic on a (ranks 0-1); reno on b2",
        ],
    ),
    "interfaces of other names": (job(rank(0, mtus={"eth0": 1500}), rank(1, mtus={"ens3": 1500, "ib0": 1500})), []),
    "local ranks that collide": (
        job(rank(0), rank(1, launched_local_rank=0)),
        ["warning: local ranks of the launcher are not those counted by shared memory on a (ranks 0-1): 0 for 0"],
    ),
    "local ranks in another order": (job(rank(0, launched_local_rank=1), rank(1, launched_local_rank=0)), []),
}


@pytest.mark.parametrize("name", CASES)
def test_findings(name, capsys):
    facts, expected = CASES[name]
    found = findings(facts)
    texts = [f"{finding.severity}: {finding.text} -> {finding.advice}" for finding in found]
    assert len(texts) == len(expected), texts
    for text, start in zip(texts, expected, strict=True):
        whole = text if "->" in start else text.partition(" -> ")[0]
        assert whole.startswith(start)
    show_doctor(facts, found)
    shown = capsys.readouterr().out
    assert all(finding.text in shown for finding in found)
    assert ("nothing wrong was found" in shown) == all(finding.severity == "note" for finding in found)
    hosts = [rank.host for rank in facts.ranks]
    assert json.loads(json.dumps(as_object(facts, found)))["hosts"] == [*map(hosts.count, sorted(set(hosts)))]


def test_huge_pages_of_shared_memory_are_tried_out(tmp_path, monkeypatch):
    (tmp_path / "shmem_enabled").write_text("always within_size advise [never] deny force\n")
    with monkeypatch.context() as patch:
        patch.setattr(shared_memory.libc(), "madvise", lambda *_: -1)
        works, text = shared_huge_pages(tmp_path)
    assert not works
    assert text.startswith("none: ")
    assert "(shmem_enabled never)" in text
    works, text = shared_huge_pages()
    assert text.startswith("collapsed on demand" if works else "none: ")


def test_mtus_are_those_of_interfaces_that_are_up(tmp_path):
    for interface in ("eth0 up 9000", "eth1 down 1500", "tun0 unknown 1400", "lo up 65536"):
        name, state, mtu = interface.split()
        (tmp_path / name).mkdir()
        (tmp_path / name / "operstate").write_text(f"{state}\n")
        (tmp_path / name / "mtu").write_text(f"{mtu}\n")
    assert mtus(tmp_path) == {"eth0": 9000, "tun0": 1400}
    assert mtus(tmp_path / "none") == {}


def test_the_worst_comes_first():
    ranks = rank(0, gpu_problem="there is no GPU"), rank(1, cores=(0,)), rank(2)
    facts = job(*ranks, device="cuda", probed=DIRECT)
    severities = [finding.severity for finding in findings(facts)]
    assert severities == sorted(severities, key=SEVERITIES.index)
    assert set(severities) == set(SEVERITIES)


LAUNCHES = [
    ({}, Launch("none")),
    (
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
        | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        Launch("Open MPI's mpirun", 4, 3, 1),
    ),
    (
        {"PMI_SIZE": "2", "PMI_RANK": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"},
        Launch("Slurm's srun", 2, 1, 1),
    ),
    ({"PMI_SIZE": "2", "PMI_RANK": "1", "PALS_LOCAL_RANKID": "1", "PMI_LOCAL_RANK": "1"}, Launch("PALS", 2, 1, 1)),
    ({"PMI_SIZE": "2", "PMI_RANK": "1", "PMI_LOCAL_RANK": "1"}, Launch("a launcher that speaks PMI", 2, 1, 1)),
    ({"PMI_SIZE": "2", "PMI_RANK": "1"}, Launch("a launcher that speaks PMI", 2, 1, None)),
    ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}, Launch("none")),  # a batch script
]


@pytest.mark.parametrize(("environment", "launch"), LAUNCHES)
def test_launchers(environment, launch):
    assert launch_of(environment) == launch


BAD = [
    (["--device", "gpu"], "device 'gpu' is unknown"),
    (["--device-memory", "stagd"], "device_memory 'stagd' is unknown: did you mean 'staged'?"),
    (["--size", "4"], "size '4' has no unit"),
    (["--size", "0MB"], "size must be from 1 B to 1 GiB, not 0MB"),
    (["--json", "no such folder/x.json"], "--json 'no such folder/x.json' cannot be written"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda value: " ".join(value)[:30])
def test_bad_flags(arguments, message, monkeypatch, here):
    monkeypatch.setattr(examine, "mpi_facts", no_library)
    result = invoke("doctor", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output


def no_library():
    raise RuntimeError("cannot load MPI library\nlibmpi.so: no such file")


def test_without_mpi(monkeypatch, tmp_path):
    monkeypatch.setattr(examine, "mpi_facts", no_library)
    file = tmp_path / "report.json"
    result = invoke("doctor", "--json", file)
    assert result.exit_code == 1, result.output
    assert "broken: no MPI library can be used: cannot load MPI library libmpi.so: no such file" in result.output
    report = json.loads(file.read_text())
    assert report["mpi"] is None
    assert [finding["severity"] for finding in report["findings"]] == ["broken"]


def test_one_rank_without_a_launcher():
    """As a process of its own: it starts MPI, if there is one."""
    command = [sys.executable, "-m", "dear_mpi", "doctor"]
    job = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert job.returncode in (0, 1), job.stderr
    assert "1 rank on 1 host" in job.stdout
    assert ("no MPI library can be used" in job.stdout) == (job.returncode == 1)
