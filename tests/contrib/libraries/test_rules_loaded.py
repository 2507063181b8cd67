"""Each MPI library measures its algorithms, and reads the file of rules."""

import subprocess
import sys

import pytest

from dear_mpi.contrib.libraries.rules import OMPI_IDS, mpich_text, ompi_text
from tests.contrib.libraries.test_rules import report
from tests.launch import mpis_at_hand

MPIS = {mpi.name: mpi for mpi in mpis_at_hand()}
VARIABLES = {
    "Open MPI": ("OMPI_MCA_coll_tuned_dynamic_rules_filename", {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}),
    "MPICH": ("MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE", {"MPIR_CVAR_DEBUG_SUMMARY": "1"}),
}
FORMATS = {"Open MPI": ("ompi", "ompi-rules"), "MPICH": ("mpich", "mpich-json")}

CALLS = """
import numpy as np
from mpi4py import MPI

def gathers(comm, count):
    found = np.zeros(comm.size * count, "f4")
    try:
        comm.Allgather(np.full(count, comm.rank, "f4"), found)
    except MPI.Exception:
        return "refused"
    return "right" if (found == np.arange(comm.size).repeat(count)).all() else "wrong"

world = MPI.COMM_WORLD
pair = world.Split(world.rank == 2)
said = [gathers(world, 16), gathers(pair, 4096), gathers(world, 1024)]
if world.rank == 0:
    print("said:", *said)
"""


def launched(name, ranks, *arguments, rules=None):
    mpi = MPIS[name]
    file, others = VARIABLES[name]
    environment = mpi.environment(ranks) | ({} if rules is None else {file: str(rules), **others})
    command = [*mpi.mpirun, "-n", str(ranks), sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.skipif("Open MPI" not in MPIS, reason="no Open MPI beside this Python")
def test_open_mpi_follows_the_rules(tmp_path):
    """For two ranks there is an algorithm that others cannot use: with more they are refused, from 2 KiB on."""
    rules, made = tmp_path / "rules", report(collective="all_gather", names=("two_proc", "ring"))
    text = ompi_text(made, lambda collective, name: {"default": 0, "two_proc": 6, "ring": 4}[name])
    rules.write_text(text.replace("\n4 # ranks", "\n3 # ranks").replace("\n5 # ranks", "\n4 # ranks"))
    assert "said: right right right" in launched("Open MPI", 3, "-c", CALLS).stdout
    assert "said: right right refused" in launched("Open MPI", 3, "-c", CALLS, rules=rules).stdout
    rules.write_text(text.replace(f"\n{OMPI_IDS['all_gather']} #", f"\n{OMPI_IDS['broadcast']} #"))
    assert "said: right right right" in launched("Open MPI", 3, "-c", CALLS, rules=rules).stdout


@pytest.mark.skipif("MPICH" not in MPIS, reason="no MPICH beside this Python")
def test_mpich_reads_the_tree(tmp_path, monkeypatch):
    """It names the file that it has read, and refuses an algorithm that it does not know."""
    rules = tmp_path / "rules.json"
    library = type("Library", (), {"_name": str(MPIS["MPICH"].libmpi)})
    monkeypatch.setattr("dear_mpi.contrib.libraries.rules.library", lambda: library)
    text = mpich_text(report("mpich", "all_gather", names=("ring", "brucks")))
    rules.write_text(text)
    job = launched("MPICH", 3, "-c", CALLS, rules=rules)
    assert "said: right right right" in job.stdout, job.stderr
    assert str(rules) in job.stdout
    rules.write_text(text.replace("MPIR_Allgather_intra_ring", "MPIR_Allgather_intra_wring"))
    assert launched("MPICH", 3, "-c", CALLS, rules=rules).returncode != 0


@pytest.mark.parametrize("name", [name for name in FORMATS if name in MPIS])
def test_what_was_measured_is_read(name, tmp_path):
    rules, (prefix, form) = tmp_path / "rules.json", FORMATS[name]
    bench = ["-m", "dear_mpi", "bench", "--sizes", "1KiB,64KiB", "--iterations", "8", "--start", "barrier"]
    job = launched(name, 2, *bench, "--format", form, "--tune", str(rules))
    assert job.returncode == 0, job.stderr
    for algorithm in ("default", "recursive_doubling", "ring"):
        assert f"{prefix}:{algorithm} " in job.stdout
    assert job.stdout.count(" sizes have a clearly faster algorithm") == 4
    assert "said: right right right" in launched(name, 2, "-c", CALLS, rules=rules).stdout


@pytest.mark.parametrize("name", [name for name in FORMATS if name in MPIS])
def test_rules_are_for_the_library_of_the_job(name, tmp_path):
    other = next(each for each in FORMATS if each != name)
    bench = ["-m", "dear_mpi", "bench", "--format", FORMATS[other][1], "--tune", str(tmp_path / "rules")]
    job = launched(name, 2, *bench)
    assert job.returncode == 2
    assert f"these algorithms are {other}'s, and this job runs {name}" in " ".join(job.stderr.split())
