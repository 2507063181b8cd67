"""What several extras share: files of timelines, and what was inside of collectives."""

from dear_mpi.collectives.plans.notes import Noted, Part
from dear_mpi.contrib.look import read_timeline, spans_of, steps_in
from dear_mpi.see.timeline import write_saved
from dear_mpi.training.events.spans import merged, starts_of
from tests.timelines import run_of, timeline_of
from tests.training.test_fusion import recording


def test_a_timeline_is_read_as_it_was_written(tmp_path):
    timeline = timeline_of(run_of("wfbp", 2), run_of("dear", 3), live=False)
    write_saved("--timeline", tmp_path / "saved.json", timeline)
    assert read_timeline(str(tmp_path / "saved.json")) == timeline


def test_a_wait_is_cut_where_the_peer_has_started_its_end():
    ends = [Part("ending", step, 0, 2, True, 0, 4) for step in range(4)]
    parts = [Part("starting", 0, 0, 2, True, 0, 4), *ends, Part("combining", 0, 0, 2, True, 0, 4)]
    own = Noted(7, {}, parts, [1.0, 2.0, 6.0, 8.0, 10.0, 11.0, 12.0])
    peers = [Part("starting", step, 0, 1, False, 0, 4) for step in (1, 0, 2)]
    starts = starts_of({1: own, 2: Noted(7, {}, peers, [0.0, 3.0, 10.5, 11.0])})
    spans = [span[:-1] for span in spans_of(1, own, starts)]
    assert spans == [
        ("transfer", 0, 2, 1.0, 2.0),
        ("waiting", 0, 2, 2.0, 3.0),
        ("transfer", 0, 2, 3.0, 6.0),
        ("transfer", 1, 2, 6.0, 8.0),  # the peer was earlier
        ("waiting", 2, 2, 8.0, 10.0),  # its start was noted after the message had come: clocks are not exact
        ("transfer", 2, 2, 10.0, 10.0),
        ("either", 3, 2, 10.0, 11.0),  # nothing is known of the peer
        ("combining", 0, 2, 11.0, 12.0),
    ]


def test_steps_are_by_the_clock_of_rank_0():
    run = merged([recording(0), recording(1)])
    assert [(span.kind, span.begin_s, span.end_s) for span in steps_in(run)[1]] == [
        ("transfer", 8.0, 9.0),
        ("waiting", 9.0, 10.0),
        ("transfer", 10.0, 11.0),
    ]
