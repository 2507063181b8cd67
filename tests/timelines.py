"""Made-up timelines."""

from bisect import bisect_right
from collections import defaultdict
from itertools import pairwise

from dear_mpi.training.events.recorder import record
from dear_mpi.training.events.spans import COMPUTE, WIRE, Iteration, Rank, Run, Span, Timeline, merged

FACTS = {"model": "synthetic:resnet50", "fusion": "25MB", "emulated_link": None, "ranks": 2}


def rank_of(name="rank 0", start=10.0, iterations=3):
    """A second forward, two backward, and one of waiting; an all-reduce goes on while it waits."""
    spans, marks = [], []
    for number in range(iterations):
        at = start + 4 * number
        marks.append(Iteration(number, at, at + 4))
        spans += [
            Span(COMPUTE, "forward", "forward conv1", at, at + 1),
            Span(COMPUTE, "backward", "backward conv1", at + 1, at + 3),
            Span(WIRE, "all_reduce", "all_reduce of bucket 0 (layers 0..0, 2.0 MiB)", at + 2.5, at + 3.75),
            Span(COMPUTE, "wait", "wait for all_reduce of bucket 0 (layers 0..0, 2.0 MiB)", at + 3, at + 3.75),
            Span(COMPUTE, "update", "update of bucket 0", at + 3.75, at + 4),
        ]
    return Rank(name, tuple(marks), tuple(sorted(spans, key=lambda span: span.begin_s)))


def run_of(name="wfbp", ranks=2, **options):
    return Run(name, tuple(rank_of(f"rank {rank}", 10.0 + 0.1 * rank, **options) for rank in range(ranks)), ranks)


def timeline_of(*runs, live=True, **facts):
    return Timeline(live, runs or (run_of(),), FACTS | facts)


def recorded(session, name, **how):
    """The last iterations of all ranks as a run, by the clock of rank 0. Collective."""
    return merged(record(session, name, **how))


# Reads a Chrome trace by the rules of Perfetto's importer, and holds it to them.

INSTANT_US = 2e-3  # times are rounded to a nanosecond: a span's end may be two of them later than it was
REQUIRED = {"M": {"args"}, "X": {"dur"}, "i": {"s"}, "s": {"id"}, "f": {"id"}}


def lanes_of(content):
    """{(process, thread): its spans in the order of their times}; of each its name and that of its process."""
    spans = defaultdict(list)
    names = {"process_name": {}, "thread_name": {}}
    for event in content["traceEvents"]:
        own = event["pid"], event["tid"]
        if event["ph"] == "X":
            spans[own].append(event)
        elif event["ph"] == "M" and event["name"] in names:
            names[event["name"]][own] = event["args"]["name"]
    processes = {process: name for (process, _), name in names["process_name"].items()}
    return {lane: sorted(found, key=lambda event: event["ts"]) for lane, found in spans.items()}, {
        lane: (processes[lane[0]], name) for lane, name in names["thread_name"].items()
    }


def enclosing(spans, at_us):
    """The span of a lane in which a moment is, as an arrow is bound; None if there is none."""
    place = bisect_right(spans, at_us, key=lambda span: span["ts"])
    return next((each for each in reversed(spans[:place][-2:]) if at_us <= each["ts"] + each["dur"]), None)


def assert_schema(content):
    """Fields are there; times are in order; spans on a lane nest; each lane has a name; each flow has two ends, each in
    a span."""
    events = content["traceEvents"]
    for event in events:
        missing = ({"name", "ph", "ts", "pid", "tid"} | REQUIRED[event["ph"]]) - event.keys()
        assert not missing, (event, missing)
        assert event["ts"] >= 0
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    lanes, names = lanes_of(content)
    assert lanes.keys() <= names.keys()
    for spans in lanes.values():
        assert all(each["dur"] >= 0 for each in spans)
        for one, other in pairwise(spans):
            assert one["ts"] + one["dur"] <= other["ts"] + INSTANT_US, (one, other)
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
            assert enclosing(lanes[event["pid"], event["tid"]], event["ts"]) is not None, event
    for identity, ends in flows.items():
        assert sorted(each["ph"] for each in ends) == ["f", "s"], (identity, ends)
        assert all(each.get("bp") == "e" for each in ends if each["ph"] == "f")
