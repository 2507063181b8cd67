"""The picture of trials says what was tried, in which order, and what was taken."""

import re

from dear_mpi.see.figure import write_figure
from dear_mpi.see.trials import draw_report

REPORT = {
    "schedule": "dear",
    "ranks": 4,
    "device": "cpu",
    "transport": "EMULATED link of 1 Gbit/s, 50 us",
    "model": "mlp",
}
TRIALS = [{"fusion": "25MB", "seconds": 0.3}, {"fusion": "4MB", "seconds": 0.2}, {"fusion": "cut:2MB", "seconds": 0.21}]


def drawn(path, **report):
    """All that is written in the picture of a report."""
    figure = draw_report(REPORT | {"tuned": TRIALS, "fusion": "4MB", "tuner": "bo"} | report)
    write_figure("--plot", path, figure)
    return re.findall(r"<!-- (.*?) -->", path.read_text("utf-8"))


def test_trials_have_their_numbers_and_the_one_that_was_taken(tmp_path):
    texts = drawn(tmp_path / "trials.svg")
    assert {"1", "2", "3", "best so far", "taken", "mlp, bo: 4MB taken"} <= set(texts)
    assert any("EMULATED link of 1 Gbit/s" in text for text in texts)
    assert not any("PREDICTED" in text for text in texts)


def test_predictions_are_lines_without_an_order(tmp_path):
    texts = drawn(tmp_path / "trials.svg", tuner="auto", fusion="cut:2MB")
    assert {"predictions, whole layers", "predictions, cut:SIZE", "mlp, auto: cut:2MB taken"} <= set(texts)
    assert "best so far" not in texts
    assert any("PREDICTED" in text for text in texts)
