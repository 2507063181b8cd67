"""A timeline of the device: marks are events of two streams, and spans add up to what the trainer has measured."""

import pytest

from dear_mpi.ranks.world import run_world
from dear_mpi.training.events.spans import COMPUTE, WIRE
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from tests.timelines import recorded
from tests.training_checks import settings

ROUNDING_S = 1e-5  # a device tells milliseconds in single precision


@pytest.mark.parametrize("update", ["full", "sharded"])
def test_spans_of_the_device_add_up(update):
    config = Config.of(settings(device="cuda", schedule="dear", update=update, iterations=4))

    def trained(world):
        with Job(config, world, [config.schedule]) as job:
            times = [job.iterate(config.schedule, *job.batch(number))[1] for number in range(config.iterations)]
            return recorded(job, "mine").ranks[world.rank], times

    rank, times = run_world(trained, threads=2)
    for iteration in rank.iterations:
        told = times[iteration.number]
        for kind, seconds in (("wait", told.exposed_s), ("forward", told.forward_s), ("backward", told.backward_s)):
            assert sum(span.seconds for span in rank.within(iteration, kind)) == pytest.approx(seconds, abs=ROUNDING_S)
    lanes = {span.lane for span in rank.spans if span.kind == "update"}
    assert lanes == {WIRE if update == "sharded" else COMPUTE}
