"""The picture of ``compare --plot``: it fits a column of a paper, and shows how sure each time is."""

import pytest

from dear_mpi.see.sweep import COLUMN_INCHES, draw_comparison

TIMES = {
    "wfbp": (0.251, 0.245, 0.262, "baseline"),
    "dear": (0.219, 0.217, 0.224, "faster"),
    "mine.py:Small(limit=4KB)": (0.24, 0.20, 0.29, "cannot tell"),
}


def row(schedule, fusion):
    median_s, low_s, high_s, verdict = TIMES[schedule]
    figures = {"median_s": median_s, "median_low_s": low_s, "median_high_s": high_s, "verdict": verdict}
    figures |= {"compute_s": 0.18, "exposed_comm_s": median_s - 0.19, "bound_s": 0.19, "speedup": 0.251 / median_s}
    where = {"model": "synthetic:resnet50", "device": "cpu", "hosts": [2, 2], "transport": "MPI, EMULATED 1 Gbit/s"}
    return figures | where | {"schedule": schedule, "asked_fusion": fusion, "wire": "fp32"}


@pytest.mark.parametrize("fusions", [("25MB",), ("25MB", "cut:4MB")])
def test_intervals_are_drawn_and_nothing_is_cut_off(fusions):
    pytest.importorskip("matplotlib")
    figure = draw_comparison([row(name, fusion) for fusion in fusions for name in TIMES], "ring")
    figure.draw_without_rendering()
    assert figure.get_figwidth() == COLUMN_INCHES
    assert len(figure.axes) == len(fusions)
    for axes in figure.axes:
        reaches = [bars for bars in axes.containers if type(bars).__name__ == "ErrorbarContainer"]
        drawn = [bars.lines[2][0].get_segments()[0][:, 0].tolist() for bars in reaches]
        assert drawn == [pytest.approx([1e3 * low_s, 1e3 * high_s]) for _, low_s, high_s, _ in TIMES.values()]
    width = figure.bbox.width
    texts = [
        *figure.texts,
        *(text for axes in figure.axes for text in (*axes.texts, axes.title, *axes.get_yticklabels())),
    ]
    for text in texts:
        box = text.get_window_extent()
        assert -1 <= box.x0 <= box.x1 <= width + 1, text.get_text()
        assert text.get_size() >= 6
    said = " ".join(figure.texts[1].get_text().split())
    assert "Measured: medians with 95 % intervals; cpu, 4 ranks on 2 hosts (2 on each), ring over MPI, EMULATED" in said
