"""What the flags add to ``bench``: comments, JSON and files; and what they refuse before the work."""

import json

import pytest

from dear_mpi.contrib.look import read_timeline
from tests.bench.readers import read_table
from tests.cli_checks import assert_one_line, invoke, succeed

QUICK = ("bench", "--threads", 3, "--algorithms", "ring", "--budget", "10ms")


def test_bench_says_why_and_which_guidelines_are_kept(tmp_path):
    """Of a ring on one link the model has each message."""
    file = tmp_path / "rows.json"
    given = ("--collective", "all_reduce,reduce_scatter,all_gather", "--sizes", "1KiB,16KiB,64KiB", "--why", "20KiB")
    timing = ("--threads", 4, "--link", "1gbit,200us", "--budget", "50ms", "--guidelines")
    result = succeed("bench", *timing, "--algorithms", "ring", *given, "--json", file)
    found = json.loads(file.read_text())
    assert {each["verdict"] for each in found["guidelines"]} <= {"kept", "broken", "cannot tell"}
    pairs = [each for each in found["guidelines"] if len(each["instead"]) == 2]
    assert [each["bytes"] for each in pairs] == [1024, 16384, 65536]
    why = [(case["collective"], case["bytes"], case["parts"][0]["model"]["messages"]) for case in found["why"]]
    assert why == [("all_reduce", 16384, 6), ("reduce_scatter", 16384, 3), ("all_gather", 16384, 3)]
    for words in ("# why: all_reduce of 16 KiB, 4 ranks", "# guidelines: ", "At 16 KiB ring takes "):
        assert words in result.stdout
    assert len(read_table(result.stdout)) == 9, "all else is a comment"


def test_bench_says_where_the_time_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    file, trace, picture = (tmp_path / name for name in ("out.json", "trace.json", "steps.png"))
    given = (*QUICK, "--sizes", "64B,4KiB")
    files = ["--timeline", f"{trace},{picture}", "--json", file]
    result = succeed(*given, "--steps", "--overlap", "--arrival", "one-late:1ms", *files)
    report = json.loads(file.read_text())
    assert [(each["ranks"], each["bytes"]) for each in report["steps"]] == [(3, 4096)]
    assert [each["bytes"] for each in report["arrival"]] == [64, 4096]
    assert [each["bytes"] for each in report["overlap"]] == [64, 64, 4096, 4096]
    assert [len(run.ranks) for run in read_timeline(str(trace)).runs] == [3]
    assert picture.stat().st_size > 1000
    for words in ("where the time goes", "what hides behind compute", "waiting", "Slowest: step"):
        assert words in " ".join(result.output.split())
    assert len(read_table(result.stdout)) == 2, "all else is a comment"


@pytest.mark.parametrize(("arguments", "message"), [
    (("--why", "64Q"), "--why: size '64Q' cannot be read"),
    (("--arrival", "one-lat"), "arrival 'one-lat' is unknown: did you mean 'one-late'"),
    (("--timeline", "x.png"), "--timeline shows what --steps records: give both"),
    (("--steps", "--timeline", "x.gif"), "--timeline 'x.gif' must end in "),
    (("--tests", "4"), "--tests is the number of calls during the compute of --overlap: give both"),
    (("--overlap", "--tests", "1000001"), "--tests must be a whole number of at most 1000000, not '1000001'"),
    (("--overlap", "--device", "cuda"), "--overlap needs --device cpu: "),
    (("--steps", "--device", "cuda"), "--steps needs --device cpu"),
    (("--arrival", "ramp", "--cadence", "streaming"), "--arrival needs --cadence isolated"),
])  # fmt: skip
def test_what_cannot_be_is_refused_before_the_run(arguments, message, monkeypatch):
    monkeypatch.setattr("dear_mpi.cli.bench.run_bench", lambda *_: pytest.fail("it has begun"))
    assert_one_line(invoke(*QUICK, *arguments), message)
