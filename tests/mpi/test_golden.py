"""Processes under mpirun have the bits that the golden file has of threads."""

from pathlib import Path

import pytest

from dear_mpi.training.fusion import BY_TIME
from tests.golden.cases import command, parameters, reported, run, trainings
from tests.golden.elementwise import write_data

pytestmark = pytest.mark.mpi
SAMPLE = 41  # every so many cases


def test_the_bits_of_threads(comm, tmp_path):
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        write_data(folder / "data.npz")
    comm.barrier()
    known = parameters()
    for options in list(trainings())[comm.size :: SAMPLE]:
        wanted = known[f"{options} --threads {comm.size}"]
        by_time = any(f"--fusion {name}" in options for name in BY_TIME)  # buckets and bits vary with measured times
        if len(wanted) == 2 and not by_time:  # trained, and with the same bits on all processors
            assert run(*command(options, folder)).exit_code == 0, options
            comm.barrier()
            assert reported(folder) == wanted, options
            comm.barrier()
