"""What a session did is told by one clock: spans of layers and notes of collectives belong together."""

from time import perf_counter

import pytest

from dear_mpi.ranks.world import run_world
from dear_mpi.training.events import recorder
from dear_mpi.training.events.recorder import done_by
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from tests.training_checks import settings

LATE_S = 10.0


def test_a_rank_that_looks_at_its_clock_late_moves_no_span(monkeypatch):
    """It was held up between a mark and its clock, and all spans came later than the notes inside of them."""
    monkeypatch.setattr(recorder, "perf_counter", lambda: perf_counter() + LATE_S)

    def trained(world):
        config = Config.of(settings(schedule="dear", iterations=3))
        with Job(config, world, [config.schedule]) as job:
            for number in range(config.iterations):
                job.iterate(config.schedule, *job.batch(number))
            job.flush()
            return done_by(job), job.group.fabric.log.last.begin

    rank, begin_s = run_world(trained, threads=2)
    assert rank.iterations[-1].begin_s == pytest.approx(begin_s, abs=1e-9)
    carried = [span for span in rank.spans if span.kind == "reduce_scatter"]
    noted = [each for each in rank.noted if each.said["collective"] == "reduce_scatter"]
    assert carried[-1].begin_s <= noted[-1].begin_s <= noted[-1].end_s <= carried[-1].end_s
