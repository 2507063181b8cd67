"""How a program over our backend of torch.distributed ends."""

import subprocess
import sys

import pytest

from tests.launch import mpis_at_hand

pytest.importorskip("torch", reason="the backend of torch.distributed needs torch (our extra 'torch')")

LATE = """
import atexit, os, threading, time
import torch, torch.distributed as dist
from mpi4py import MPI
from dear_mpi.torch import init_process_group

def look():
    if threading.active_count() > 1:
        os._exit(3)

atexit.register(look)  # it runs after what the group registers
init_process_group(MPI.COMM_WORLD)
work = dist.all_reduce(torch.ones(3), async_op=True)
work.get_future().then(lambda future: time.sleep(0.5))  # in the thread of the group
"""
DESTROYED = LATE + "dist.destroy_process_group()\nlook()\n"

FAILING = """
import sys
import torch, torch.distributed as dist
from mpi4py import MPI
from dear_mpi.torch import init_process_group
init_process_group(MPI.COMM_WORLD)
dist.barrier()
if MPI.COMM_WORLD.rank == 1:
    MPI.COMM_WORLD.recv()
try:
    dist.all_reduce(torch.ones(3), async_op=True)
    raise ZeroDivisionError("on purpose")
finally:
    dist.destroy_process_group()
"""


def ended(*arguments):
    mpi = mpis_at_hand()[0]
    command = [*mpi.mpirun, "-n", "2", sys.executable, *arguments]
    return subprocess.run(command, env=mpi.environment(2), capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("code", [LATE, DESTROYED], ids=["as it is", "destroyed"])
def test_no_thread_of_a_group_is_left_when_python_ends(code):
    """Programs ended with 134 in one of four runs: the thread told a future of its result while Python ended."""
    job = ended("-c", code)
    assert job.returncode == 0, job.stderr


def test_a_rank_that_fails_does_not_wait_for_what_the_others_never_start(tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    job = ended("-m", "mpi4py", str(tmp_path / "failing.py"))
    assert job.returncode != 0
    assert "ZeroDivisionError: on purpose" in job.stderr
