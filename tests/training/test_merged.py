"""Recordings of ranks, with clocks of their own, become one run or are refused; what was inside of collectives."""

from dataclasses import replace

import pytest

from dear_mpi.collectives.plans.notes import Noted, Part
from dear_mpi.ranks.clock import Aligned, Look
from dear_mpi.see.timeline import TimelineFiles, put_together, trace
from dear_mpi.training.log.spans import (
    COMPUTE,
    ClocksError,
    Iteration,
    Rank,
    Recording,
    Span,
    Timeline,
    merged,
)
from tests.trace_schema import assert_schema

AHEAD_S = 1000.0  # the clock of rank 1
UNCERTAIN_S = 0.01
SAID = {"collective": "all_gather", "algorithm": "ring", "bucket": 3}


def noted(rank, sent_s, number=7):
    """Rank 0 sends 4 bytes at 10 s, rank 1 waits for them from 9 s to 11 s; or the other way round at another time."""
    peer, to = 1 - rank, rank == 1
    parts = [Part("starting", 0, 0, peer, to, 0, 4), Part("ending", 0, 0, peer, to, 0, 4)]
    times = [sent_s, sent_s + 0.5, sent_s + 1] if rank == 0 else [8.0, 9.0, 11.0]
    return Noted(number, SAID, parts, times)


def recording(rank, *, sent_s=10.0, uncertainty_s=UNCERTAIN_S, looks=None):
    own = noted(rank, sent_s)
    done = Rank(
        f"rank {rank}",
        (Iteration(0, 8.0, 12.0),),
        (Span(COMPUTE, "forward", "forward a", 8.0, 9.5),),
        rank,
        (own.earlier(-AHEAD_S * rank),),
    )
    if rank == 0:
        return Recording("dear", 2, done, Aligned())
    shifted = replace(
        done,
        iterations=(Iteration(0, 8.0 + AHEAD_S, 12.0 + AHEAD_S),),
        spans=(done.spans[0]._replace(begin_s=8.0 + AHEAD_S, end_s=9.5 + AHEAD_S),),
    )
    looks = looks or (Look(AHEAD_S, AHEAD_S, uncertainty_s), Look(AHEAD_S + 20, AHEAD_S, uncertainty_s))
    return Recording("dear", 2, shifted, Aligned(looks))


def test_times_are_by_the_clock_of_rank_0():
    run = merged([recording(0), recording(1)])
    other = run.ranks[1]
    assert other.iterations == (Iteration(0, 8.0, 12.0),)
    assert other.spans[0].begin_s == 8.0
    assert list(other.noted[0].times) == [8.0, 9.0, 11.0]
    assert UNCERTAIN_S < run.uncertainty_s < 2 * UNCERTAIN_S
    found = run.inside
    assert [(span.kind, span.begin_s, span.end_s) for span in found.spans[1]] == [
        ("transfer", 8.0, 9.0),
        ("waiting", 9.0, 10.0),
        ("transfer", 10.0, 11.0),
    ]
    (flow,) = found.flows
    assert flow[:4] == (0, 10.0, 1, 11.0)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"looks": (Look(AHEAD_S, AHEAD_S, 1e-3), Look(AHEAD_S + 20, AHEAD_S + 3, 1e-3))},
            "clocks of ranks 0 and 1 cannot",
        ),
        ({"sent_s": 11.1}, "rank 1 has a message 0.1 s before rank 0 sent it"),
        (
            {"uncertainty_s": 2.0},
            "are known within .* only, and half of all messages took no longer than 1 s",
        ),
    ],
    ids=["set", "before it was sent", "worse than messages"],
)
def test_clocks_that_cannot_be_known_are_refused(how, said):
    with pytest.raises(ClocksError, match=said):
        merged([recording(0, **({"sent_s": how["sent_s"]} if "sent_s" in how else {})), recording(1, **how)])


def test_a_message_may_come_before_it_was_sent_by_as_much_as_clocks_are_uncertain():
    parts = [Part("starting", 0, 1, 1, False, 0, 4)], [Part("ending", 0, 1, 0, True, 0, 4)]
    early = Noted(8, SAID, parts[0], [12.0, 12.1]), Noted(8, SAID, parts[1], [11.0 + AHEAD_S, 11.995 + AHEAD_S])
    both = [recording(0), recording(1)]
    both = [
        replace(each, rank=replace(each.rank, noted=(*each.rank.noted, more)))
        for each, more in zip(both, early, strict=True)
    ]
    assert min(flow.seconds for flow in merged(both).inside.flows) == pytest.approx(-0.005)


def test_collectives_that_not_all_ranks_have_noted_any_more_are_left_out():
    both = [recording(0), recording(1)]
    older = replace(both[0], rank=replace(both[0].rank, noted=(noted(0, 1.0, number=6), *both[0].rank.noted)))
    assert {span.args["number"] for span in merged([older, both[1]]).inside.spans[0]} == {7}


# Files of single ranks -----------------------------------------------------------------------------------------------


def written(tmp_path, *recordings, job="a"):
    show = TimelineFiles("--timeline", [tmp_path / "x.json"])
    return [str(show.write_rank([each], {"job": job, "model": "mlp"})) for each in recordings]


def test_files_of_ranks_put_together_are_as_if_they_had_been_merged(tmp_path):
    files = written(tmp_path, recording(1), recording(0))
    assert [path.rpartition("/")[2] for path in files] == ["x.rank1.json", "x.rank0.json"]
    timeline = put_together(files)
    wanted = trace(Timeline(True, (merged([recording(0), recording(1)]),), {"job": "a", "model": "mlp"}))
    found = trace(timeline)
    assert_schema(found)
    uncertainties = [each["otherData"].pop("clock_uncertainty_us")[0] for each in (found, wanted)]
    assert uncertainties[0] == pytest.approx(uncertainties[1], abs=0.01)
    assert found["otherData"] == wanted["otherData"]
    assert len(found["traceEvents"]) == len(wanted["traceEvents"])
    for one, other in zip(found["traceEvents"], wanted["traceEvents"], strict=True):
        assert one["name"] == other["name"]
        assert one.get("args") == other.get("args")
        assert one["ts"] == pytest.approx(other["ts"], abs=2e-3)


def test_a_rank_may_be_missing_and_a_call_under_way(tmp_path):
    one = recording(1)
    last = one.rank.noted[0]
    broken = replace(one, rank=replace(one.rank, iterations=(), noted=(last.at(last.times, under_way=True),)))
    files = written(tmp_path, recording(0), broken)
    found = trace(put_together(files))
    assert_schema(found)
    assert not [event for event in found["traceEvents"] if event["ph"] == "f"], "it has not arrived"
    (call,) = [event for event in found["traceEvents"] if event.get("args", {}).get("under_way")]
    assert call["pid"] == 1
    alone = put_together(files[1:])
    assert [rank.number for rank in alone.runs[0].ranks] == [1]
    kinds = [span.kind for span in alone.runs[0].inside.spans[1]]
    assert kinds == ["transfer", "either"], "nothing is known of its peer"


def test_files_of_other_jobs_are_refused(tmp_path):
    (first,) = written(tmp_path, recording(0))
    (tmp_path / "more").mkdir()
    (other,) = written(tmp_path / "more", recording(1), job="b")
    with pytest.raises(ValueError, match=r"x.rank1.json' and '.*x.rank0.json' are not of one run"):
        put_together([first, other])
    with pytest.raises(ValueError, match="rank 0 must have one file"):
        put_together([first, first])
    (tmp_path / "no.json").write_text("{}")
    for name, said in (("no.json", "is no timeline of one rank"), ("nowhere.json", "cannot be read: No such file")):
        with pytest.raises(ValueError, match=said):
            put_together([first, str(tmp_path / name)])
