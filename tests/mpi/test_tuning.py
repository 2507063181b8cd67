"""What tests/training/test_tuning.py shows of threads holds for processes: all ranks cut alike, whatever clocks say."""

import pytest

from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_link
from tests.tuning_checks import RANGE, check_trials, tuned

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("schedule", ["wfbp", "dear-eager"])
def test_all_ranks_cut_alike(comm, schedule):
    iterations = 90 if schedule == "dear-eager" else 55  # its order is decided in three iterations after each cut
    found = tuned(comm, comm.rank, comm.size, iterations=iterations, fusion=f"bo:{RANGE}", schedule=schedule)
    check_trials(comm.allgather(found), comm.size)


@pytest.mark.parametrize("link", [None, parse_link("10gbit,50us")], ids=["timed", "modelled"])
def test_all_ranks_cut_as_was_predicted(comm, link):
    found = run_world(lambda world: tuned(world, comm.rank, comm.size, iterations=10, fusion="auto"), link=link)
    answers = comm.allgather(found)
    assert answers == answers[:1] * comm.size
    trials, fusion, _, _, over = found
    assert over
    assert fusion in dict(trials)


def test_a_range_without_a_choice_is_refused_on_all_ranks(comm):
    with pytest.raises(ArgumentError, match=r"'bo:1KB..2KB': all sizes from 1KB to 2KB cut this model into") as error:
        tuned(comm, comm.rank, comm.size, iterations=1, fusion="bo:1KB..2KB")
    assert len(set(comm.allgather(str(error.value)))) == 1
