"""Perfetto's own trace processor reads our traces as we mean them: nothing is dropped, and each arrow has two ends.

Needs ``pip install perfetto``, which fetches its binary at the first use, or the binary's path in TRACE_PROCESSOR.
``tests/trace_schema.py`` reads the same traces by the same rules, without it.
"""

import json
import os

import pytest
from typer.testing import CliRunner

from dear_mpi.cli.app import app


@pytest.fixture
def opened(tmp_path):
    """Opens a trace; skips where that cannot be."""
    processor = pytest.importorskip("perfetto.trace_processor", reason="perfetto is not installed")
    opened = []

    def open_trace(file):
        config = processor.TraceProcessorConfig(bin_path=os.environ.get("TRACE_PROCESSOR"))
        try:
            opened.append(processor.TraceProcessor(trace=str(file), config=config))
        except Exception as error:
            pytest.skip(f"Perfetto's binary cannot be had: {error}")
        return opened[-1]

    yield open_trace
    for each in opened:
        each.close()


def test_perfetto_reads_all_of_a_trace(opened, tmp_path):
    file = tmp_path / "timeline.json"
    given = ["train", "--threads", "4", "--model", "mlp", "--iterations", "4", "--schedule", "dear"]
    done = CliRunner().invoke(app, [*given, "--timeline", str(file)])
    assert done.exit_code == 0, done.output
    trace = opened(file)
    events = json.loads(file.read_text())["traceEvents"]

    def count(query):
        (row,) = trace.query(f"select count(*) as n from {query}")
        return row.n

    def known(phase):
        return sum(event["ph"] == phase for event in events)

    assert count("slice") == known("X") + known("i")
    assert count("flow") == known("s") == known("f") > 0
    assert count("stats where severity in ('error', 'data_loss') and value > 0") == 0
    assert count("slice where depth > 0") == 0, "spans of a lane come after one another"
