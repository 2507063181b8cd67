"""Recording under mpirun: every rank has the spans of all, and each adds up to what its own rank has measured."""

import pytest

from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_link
from dear_mpi.training.recording import recorded
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from tests.training_checks import settings

pytestmark = pytest.mark.mpi


def trained(world):
    """The run, and the times of its iterations on this rank."""
    config = Config.of(settings(schedule="dear", iterations=5))
    with Job(config, world, [config.schedule]) as job:
        times = [job.iterate(config.schedule, *job.batch(number))[1] for number in range(config.iterations)]
        return recorded(job, "mine"), times


@pytest.mark.parametrize("link", [None, parse_link("10gbit,1us")], ids=["real", "emulated"])
def test_spans_of_all_ranks_add_up(comm, link):
    run, times = run_world(trained, link=link)
    assert comm.allgather(run) == [run] * comm.size
    assert [rank.name for rank in run.ranks] == [f"rank {rank}" for rank in range(comm.size)]
    mine = run.ranks[comm.rank]
    for iteration in mine.iterations:
        told = times[iteration.number]
        assert sum(span.seconds for span in mine.within(iteration, "wait")) == pytest.approx(told.exposed_s, abs=1e-9)
        assert sum(span.seconds for span in mine.within(iteration, "forward")) == pytest.approx(told.forward_s)
        assert sum(span.seconds for span in mine.within(iteration, "backward")) == pytest.approx(told.backward_s)
