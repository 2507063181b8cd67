"""Processes under mpirun have the bits of one thread, on any number of ranks."""

import pytest

from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_links
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving, train
from tests.training_checks import README, installed, settings

pytestmark = pytest.mark.mpi
CASES = installed(
    {"model": "mlp", "optimizer": "sgd", "algorithm": "auto", "clip": 0.1},
    {"model": "mlp", "optimizer": "adamw", "schedule": "wfbp", "accumulate": 2, "fusion": "25MB"},
    {"model": "cnn", "optimizer": "muon", "schedule": "dear-eager", "update": "sharded", "batch": 16},
    {"model": "gpt", "data": README, "context": 8, "batch": 16, "schedule": "fsdp", "algorithm": "ordered"},
    {"model": "cnn", "optimizer": "adamw", "wire": "fixed32", "algorithm": "ring", "batch": 16, "clip": 0.1},
)


def run(threads=None, link=None, saving=None, **choices):
    config = Config.of(settings(**{"invariant": 8, "iterations": 4} | choices))
    report = run_world(lambda world: train(config, world, saving=saving), threads=threads, link=link)
    return report["params_sha256"], report["loss"]


@pytest.mark.parametrize("choices", CASES, ids=str)
def test_the_bits_of_one_thread(comm, choices):
    found = comm.allgather(run(**choices))
    assert found == [run(threads=1, **choices)] * comm.size


def test_the_bits_do_not_depend_on_hosts(comm):
    link = parse_links("10gbit,1us/1gbit,10us,per_host=2") if comm.size in (2, 4) else None
    assert run(link=link, algorithm="auto") == run(threads=1)


def test_a_checkpoint_of_another_number_of_ranks(comm, tmp_path):
    file = comm.bcast(tmp_path / "run.npz")
    if comm.rank == 0:
        run(threads=comm.size + 1, saving=Saving(file), iterations=2)
    comm.barrier()
    assert run(saving=Saving(file, resume=True)) == run(threads=1)
