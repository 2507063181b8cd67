"""Pictures of timelines: what a reader needs is drawn, can be read, and says what it is."""

import subprocess
import sys

import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from dear_mpi.contrib.pictures.figure import legend_below, panels, write_figure
from dear_mpi.contrib.pictures.timeline import draw_timeline
from dear_mpi.reporting.files import printable
from tests.cli_checks import assert_one_line, invoke, succeed
from tests.timelines import run_of, timeline_of


def drawn(timeline):
    figure = draw_timeline(timeline)
    figure.draw_without_rendering()
    return figure, figure.axes


def said(figure):
    return " ".join(text.get_text() for text in figure.texts)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def extents(axes, color):
    """(begin, end) in ms of all bars of a colour."""
    return sorted(
        (round(path.vertices[:, 0].min(), 6), round(path.vertices[:, 0].max(), 6))
        for collection in axes.collections
        if len(collection.get_facecolor()) and to_rgb(collection.get_facecolor()[0]) == to_rgb(color)
        for path in collection.get_paths()
    )


def test_a_picture_shows_the_last_two_iterations_in_ms_and_shades_what_is_exposed():
    figure, (axes,) = drawn(timeline_of())
    assert "Live: resnet50 under wfbp on 2 ranks" in said(figure)
    ticks = [tick.get_text() for tick in axes.get_yticklabels()]
    assert ticks == ["rank 0  compute", "wire", "rank 1  compute", "wire"]
    assert axes.get_xlabel() == "ms"
    assert axes.get_xlim() == pytest.approx((0, 8100)), "from the first rank's beginning to the last one's end"
    assert extents(axes, "#D55E00") == [(3000, 3750), (3100, 3850), (7000, 7750), (7100, 7850)]
    assert (0, 1000) in extents(axes, "#56B4E9")
    assert legend(figure) == [
        *("forward", "backward", "compute waits: exposed", "update", "all_reduce"),
        "an iteration begins or ends",
    ]
    assert {text.get_text() for text in axes.texts} >= {"conv1", "0"}


def test_a_picture_says_predicted_and_emulated():
    assert "Predicted: resnet50" in said(drawn(timeline_of(live=False))[0])
    assert "EMULATED" not in said(drawn(timeline_of())[0])
    transport = "EMULATED link of 1 Gbit/s over loopback (threads)"  # as the transport names itself
    assert transport in said(drawn(timeline_of(transport=transport))[0])


def test_a_picture_of_several_runs_has_a_panel_for_each_on_one_scale():
    figure, panels = drawn(timeline_of(run_of("wfbp"), run_of("dear", iterations=1)))
    taken = "the last iteration takes 4000 ms, of which 750.0 are exposed"
    assert [axes.get_title() for axes in panels] == [f"wfbp: {taken}", f"dear: {taken}"]
    assert len({axes.get_xlim() for axes in panels}) == 1
    assert "under" not in said(figure)


@pytest.mark.parametrize(
    "timeline", [timeline_of(), timeline_of(run_of("wfbp"), run_of("dear")), timeline_of(run_of(ranks=20))]
)
def test_nothing_is_written_over_something_else(timeline):
    figure, panels = drawn(timeline)
    boxes = [text.get_window_extent() for text in figure.texts] + [axes.get_tightbbox() for axes in panels]
    boxes += [figure.legends[0].get_window_extent()]
    width, height = figure.canvas.get_width_height()
    for number, box in enumerate(boxes):
        assert 0 <= box.x0 <= box.x1 <= width + 1
        assert 0 <= box.y0 <= box.y1 <= height + 1
        assert not any(box.overlaps(other) for other in boxes[:number])


def test_iterations_that_take_no_time_have_a_picture(tmp_path):
    file = tmp_path / "x.png"
    succeed("simulate", "--ranks", "1", "--forward-time", "0", "--timeline", file)
    assert file.stat().st_size > 0


@pytest.mark.parametrize("name", ["a$x^{$b", "$a$", "a\\$b$c$", "x\x1b[2J\ud800"])
def test_a_picture_has_names_as_they_are(name, tmp_path):
    """Not as a formula, however many dollars there are; and what no font can draw as an escape."""
    figure, (axes,) = panels(1, columns=1, inches=(3, 3), title=name)
    axes.plot([1, 2], [1, 2], label=name)
    axes.set(title=name, xlabel=name)
    axes.set_xticks([1, 2], ["$1$", "2"])
    legend_below(figure)
    write_figure("--plot", tmp_path / "names.png", figure)
    shown = [text for text in figure.findobj(Text) if text.get_text() == printable(name)]
    assert len(shown) == 4
    assert not any(text.get_parse_math() for text in figure.findobj(Text))


def test_a_saved_timeline_is_drawn(tmp_path):
    saved, drawn = tmp_path / "x.json", tmp_path / "x.svg"
    words = ("simulate", "--ranks", "2", "--schedules", "wfbp,dear", "--timeline", str(saved))
    succeed(*words)
    succeed("timeline", saved, "--timeline", drawn)
    assert drawn.read_text().startswith("<?xm")
    assert_one_line(invoke("timeline", drawn), "is no timeline of all ranks")


@pytest.mark.parametrize(("file", "said"), [
    ("x.txt", "--timeline 'x.txt' must end in .json or .pdf or .png or .svg"),
    ("nowhere/x.png", "--timeline 'nowhere/x.png' cannot be written: there is no folder 'nowhere'"),
])  # fmt: skip
def test_files_that_cannot_be_written_are_refused_before_the_work(file, said):
    assert_one_line(invoke("simulate", "--timeline", file), said)


@pytest.mark.parametrize("flags", [("--timeline", "x.png"), ("--plot", "x.png")])
def test_without_matplotlib(flags):
    command = "import sys; sys.modules['matplotlib'] = None; from dear_mpi.__main__ import main; main()"
    words = [sys.executable, "-c", command, "simulate", *flags]
    done = subprocess.run(words, capture_output=True, text=True, timeout=99)
    assert done.returncode == 2
    assert "matplotlib" in done.stderr
    assert "Traceback" not in done.stderr
