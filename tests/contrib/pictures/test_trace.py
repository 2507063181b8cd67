"""The trace of a timeline has what Perfetto needs."""

import json

from dear_mpi.contrib.look import LANES
from dear_mpi.contrib.pictures.trace import trace
from dear_mpi.training.events.spans import COMPUTE, Iteration, Rank, Run, Span
from tests.cli_checks import succeed
from tests.timelines import assert_schema, run_of, timeline_of


def of_kind(content, phase):
    return [event for event in content["traceEvents"] if event["ph"] == phase]


def assert_trace(content, *, steps=False):
    """What any trace must keep; the names of the processes, by their numbers."""
    names = {event["pid"]: event["args"]["name"] for event in of_kind(content, "M") if event["name"] == "process_name"}
    lanes = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in of_kind(content, "M")
        if event["name"] == "thread_name"
    }
    shown = LANES if steps else LANES[:-1]
    assert lanes == {(process, thread): lane for process in names for thread, lane in enumerate(shown)}
    assert_schema(content)
    assert bool(of_kind(content, "s")) == steps
    return names


def test_a_trace_of_one_run():
    content = json.loads(json.dumps(trace(timeline_of())))
    assert assert_trace(content) == {0: "rank 0", 1: "rank 1"}
    first, *_ = of_kind(content, "X")
    assert first == {"name": "forward conv1", "cat": "forward", "ph": "X", "ts": 0, "dur": 1e6, "pid": 0, "tid": 0}
    wire = next(event for event in of_kind(content, "X") if event["tid"] == 1)
    assert (wire["name"], wire["cat"]) == ("all_reduce of bucket 0 (layers 0..0, 2.0 MiB)", "all_reduce")
    assert (wire["ts"], wire["dur"]) == (2.5e6, 1.25e6)
    marks = [(event["name"], event["ts"]) for event in of_kind(content, "i") if event["pid"] == 1]
    assert marks == [("iteration 0", 1e5), ("iteration 1", 4.1e6), ("iteration 2", 8.1e6)]
    said = content["otherData"]
    assert (said["times"], said["model"], said["emulated_link"]) == ("live (measured)", "synthetic:resnet50", None)
    assert said["runs"] == ["wfbp"]


def test_a_trace_of_several_runs_has_a_group_of_processes_for_each():
    content = trace(timeline_of(run_of("wfbp", 2), run_of("dear", 3), live=False))
    lanes = list(assert_trace(content).values())
    assert lanes == ["wfbp: rank 0", "wfbp: rank 1", "dear: rank 0", "dear: rank 1", "dear: rank 2"]
    assert content["otherData"]["times"] == "predicted"
    begins = {event["pid"]: event["ts"] for event in reversed(of_kind(content, "X"))}
    assert sorted(begins.values()) == [0, 0, 1e5, 1e5, 2e5], "each run begins at 0"


def test_spans_that_touch_do_so_in_the_file():
    third = 10 + 1 / 3
    spans = (Span(COMPUTE, "forward", "a", 10.0, third), Span(COMPUTE, "forward", "b", third, third + 1e-7))
    content = trace(timeline_of(Run("mine", (Rank("rank 0", (Iteration(0, 10.0, 11.0),), spans),), 1)))
    one, other = of_kind(content, "X")
    assert round(one["ts"] + one["dur"], 3) == other["ts"]


QUICK = ("--threads", 2, "--model", "mlp", "--fusion", "none", "--iterations", 4)


def test_train_writes_a_trace(tmp_path):
    file = tmp_path / "timeline.json"
    succeed("train", *QUICK, "--timeline", file)
    content = json.loads(file.read_text())
    assert assert_trace(content, steps=True) == {0: "rank 0", 1: "rank 1"}
    names = [event["name"] for event in of_kind(content, "i") if event["pid"] == 0]
    assert names == ["iteration 1", "iteration 2", "iteration 3"]
    assert content["otherData"]["schedule"] == "dear"


def test_simulate_has_a_group_for_each_row(tmp_path):
    file = tmp_path / "timeline.json"
    succeed("simulate", "--ranks", "2,4", "--schedules", "wfbp,dear", "--timeline", file)
    content = json.loads(file.read_text())
    rows = [f"{schedule}, {ranks} ranks" for ranks in (2, 4) for schedule in ("wfbp", "dear")]
    assert list(assert_trace(content).values()) == [f"{row}: each of {row[-7]} ranks" for row in rows]
    assert content["otherData"]["times"] == "predicted"
