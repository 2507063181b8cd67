"""A run that fails, stalls or is killed leaves what its ranks did last, and that can be put together."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dear_mpi.see.timeline import put_together, trace
from dear_mpi.training.recorder import LastSeconds
from tests.launch import ROOT, mpis_at_hand
from tests.trace_schema import assert_schema

LIMIT_S = 300
RANKS = 3
SHORT = ("--model", "mlp", "--data", "digits", "--iterations", "40", "--stall-after", "5s", "--stall-abort")


def failed(mpi, tmp_path, kind, **given):
    """What a run says in which rank 1 fails in its tenth iteration; no ``mpi``: with threads."""
    fault = {"kind": kind, "phase": "mid run", "rank": 1, "at": 30, **given}
    environment = os.environ | ({} if mpi is None else mpi.environment(RANKS))
    environment |= {"FAULT": json.dumps(fault), "FAULT_FOLDER": str(tmp_path)}
    command = [sys.executable, "-m", "tests.faults.plant", "train", *SHORT, "--timeline", f"{tmp_path}/t.json"]
    under = ["--threads", str(RANKS)] if mpi is None else []
    launcher = [] if mpi is None else [*mpi.mpirun, "-n", str(RANKS)]
    job = subprocess.run(
        [*launcher, *command, *under], env=environment, cwd=ROOT, capture_output=True, timeout=LIMIT_S, check=False
    )
    said = (job.stdout + job.stderr).decode(errors="replace")
    assert (tmp_path / "struck").exists(), said
    return said


def together(tmp_path):
    files = sorted(map(str, tmp_path.glob("t.rank*.json")))
    timeline = put_together(files)
    content = trace(timeline)
    assert_schema(content)
    return timeline, content


@pytest.mark.parametrize("mpi", [None, *mpis_at_hand()], ids=lambda mpi: "threads" if mpi is None else mpi.name)
def test_where_a_rank_raises_all_leave_their_last_seconds(mpi, tmp_path):
    said = failed(mpi, tmp_path, "raise")
    assert f"timeline: rank 1 fails with RuntimeError: what it did last is in {tmp_path}/t.rank1.json" in said
    timeline, content = together(tmp_path)
    assert len(timeline.runs[0].ranks) == RANKS, said
    assert [len(rank.iterations) for rank in timeline.runs[0].ranks] == [3] * RANKS
    assert any(event["ph"] == "f" for event in content["traceEvents"])


@pytest.mark.parametrize("mpi", mpis_at_hand(), ids=lambda mpi: mpi.name)
def test_where_a_rank_stays_away_the_others_wait_for_it(mpi, tmp_path):
    said = failed(mpi, tmp_path, "endless")
    assert "timeline: rank 0 stalls: what it did last is in" in said
    timeline, content = together(tmp_path)
    assert len(timeline.runs[0].ranks) == RANKS, said
    waits = [event for event in content["traceEvents"] if event.get("args", {}).get("under_way")]
    assert {event["pid"] for event in waits} == {0, 2}
    assert all(event["cat"] == "waiting" and event["dur"] > 1e6 for event in waits)
    assert 1 in {event["args"]["peer"] for event in waits}


def test_what_is_written_fast_comes_first(capsys):
    """A launcher may kill this rank before the rest is written."""
    asked = []

    class Told(LastSeconds):
        def write_last(self, seconds, most_calls):
            asked.append((seconds, most_calls))
            return "FILE.rank0.json"

    last = Told(SimpleNamespace(world=SimpleNamespace(rank=0)), {})
    last.ends()
    last.ends()
    assert asked == [(1.0, 500), (10.0, 20_000)]
    assert capsys.readouterr().err.count("what it did last is in FILE.rank0.json") == 1
