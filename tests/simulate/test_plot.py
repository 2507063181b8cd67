"""Pictures of a sweep: which one is chosen, what it shows, that it can be read, and errors before the work."""

import sys
from itertools import combinations, product

import numpy as np
import pytest
from typer.testing import CliRunner

from dear_mpi.cli.app import app
from dear_mpi.see.figure import readable
from dear_mpi.see.sweep.bars import draw_bars
from dear_mpi.see.sweep.cells import draw_speedups, draw_times
from dear_mpi.see.sweep.curves import draw_curves
from dear_mpi.see.sweep.draw import picture_of
from dear_mpi.see.sweep.sweep import Sweep

MODELS = tuple(f"synthetic:{name}" for name in ("resnet50", "densenet201", "inceptionv4", "bert_base", "bert_large"))
SCHEDULES = ("wfbp", "dear", "sequential")
RANKS = (2, 4, 8, 16, 32, 64)
FUSIONS = ("none", "25MB", "cut:4MB", "buckets:8")
HEADING = (
    "Predicted, with ring on the network 10gbit,50us (assumed)\ncompute: 0.1 s forward and 0.2 s backward (assumed)"
)
COMPUTE_S = 0.3
EXPOSED_S = {"wfbp": 0.002, "dear": 0.001, "sequential": 0.008}  # times the ranks and the place of the fusion
UPDATE_S = 0.01


def exposed_s(ranks, schedule, fusion):
    """A made-up time that is another one in each row, and least with 25MB."""
    return EXPOSED_S[schedule] * ranks * {"none": 3, "25MB": 1, "cut:4MB": 1.5, "buckets:8": 2}[fusion]


def iteration_s(ranks, schedule, fusion):
    return COMPUTE_S + UPDATE_S + exposed_s(ranks, schedule, fusion)


def sweep_of(models=MODELS[:1], ranks=(64,), schedules=SCHEDULES, fusions=("25MB",)):
    rows = [
        {
            "model": model,
            "ranks": size,
            "schedule": schedule,
            "fusion": fusion,
            "iteration_s": iteration_s(size, schedule, fusion),
            "compute_s": COMPUTE_S,
            "exposed_comm_s": exposed_s(size, schedule, fusion),
            "bound_s": COMPUTE_S + exposed_s(size, schedule, fusion) / 2,
            "speedup_vs_wfbp": iteration_s(size, "wfbp", fusion) / iteration_s(size, schedule, fusion),
        }
        for model, size, fusion, schedule in product(models, ranks, fusions, schedules)
    ]
    return Sweep(rows)


def drawn(sweep):
    """The figure that suits a sweep, laid out, and its panels by their titles."""
    pytest.importorskip("matplotlib")
    figure = picture_of(sweep)(sweep, HEADING)
    figure.draw_without_rendering()
    return figure, {axes.get_title(): axes for axes in figure.axes if axes.get_title()}


def names(ticks):
    return [tick.get_text() for tick in ticks]


def seen(axis):
    """The numbers at an axis, without those that are off its ends."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


def cells(axes):
    """The numbers of a panel's cells, and the (line, column) of those with a frame."""
    (mesh,) = axes.collections
    shape = mesh.get_array().shape
    texts = {tuple(int(part) for part in reversed(text.get_position())): text.get_text() for text in axes.texts}
    assert len(texts) == mesh.get_array().size
    written = [[texts[line, column] for column in range(shape[1])] for line in range(shape[0])]
    return mesh.get_array(), written, sorted((int(frame.get_y()), int(frame.get_x())) for frame in axes.patches)


@pytest.mark.parametrize(
    ("varied", "picture"),
    [
        ({"schedules": ("dear",)}, draw_bars),
        ({"models": MODELS}, draw_bars),
        ({"fusions": FUSIONS}, draw_times),
        ({"ranks": RANKS}, draw_curves),
        ({"ranks": RANKS, "fusions": FUSIONS}, draw_speedups),
        ({"ranks": RANKS, "fusions": FUSIONS, "schedules": ("dear",)}, draw_speedups),
        ({"ranks": RANKS, "fusions": FUSIONS, "schedules": ("wfbp",)}, draw_curves),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else value.__name__,
)
def test_the_picture_suits_what_was_varied(varied, picture):
    assert picture_of(sweep_of(**varied)) is picture


def test_curves_are_times_bounds_and_compute():
    figure, panels = drawn(sweep_of(models=MODELS, ranks=RANKS[::-1]))
    assert list(panels) == ["resnet50", "densenet201", "inceptionv4", "bert_base", "bert_large"]
    for axes in panels.values():
        lines = dict(zip(SCHEDULES, zip(axes.lines[::2], axes.lines[1::2], strict=True), strict=True))
        for schedule, (line, bound) in lines.items():
            assert line.get_label() == schedule
            assert list(line.get_xdata()) == list(RANKS)
            assert list(line.get_ydata()) == pytest.approx(
                [1e3 * iteration_s(size, schedule, "25MB") for size in RANKS]
            )
            expected = [300 + 500 * exposed_s(size, schedule, "25MB") for size in RANKS]
            assert list(bound.get_ydata()) == pytest.approx(expected)
            assert bound.get_color() == line.get_color()
            assert bound.get_linewidth() < line.get_linewidth()
        assert len({line.get_color() for line, _ in lines.values()}) == len(SCHEDULES)
        assert len({line.get_marker() for line, _ in lines.values()}) == len(SCHEDULES)
        (floor,) = axes.collections
        assert floor.get_paths()[0].get_extents().ymax == pytest.approx(300)
        assert axes.get_ylim()[0] == 0
        assert names(axes.get_xticklabels()) == list(map(str, RANKS))
    (legend,) = figure.legends
    assert names(legend.get_texts()) == [*SCHEDULES, "thin: bound", "compute"]


def test_curves_of_several_fusions_have_a_style_for_each():
    _, panels = drawn(sweep_of(ranks=RANKS, fusions=FUSIONS, schedules=("wfbp",)))
    lines = panels["resnet50"].lines[::2]
    assert [line.get_label() for line in lines] == [f"wfbp, fusion {fusion}" for fusion in FUSIONS]
    assert len({line.get_linestyle() for line in lines}) == len(FUSIONS)


def test_an_axis_names_no_ranks_that_would_run_into_each_other():
    assert readable(RANKS) == list(RANKS)
    assert readable([1, 2, 3, 4, 60, 64, 100, 4096]) == [1, 3, 60, 4096]


def test_cells_of_times_have_their_numbers_and_a_frame_around_the_least():
    _, panels = drawn(sweep_of(models=MODELS, fusions=FUSIONS))
    assert len(panels) == len(MODELS)
    expected = [[iteration_s(64, schedule, fusion) for schedule in SCHEDULES] for fusion in FUSIONS]
    for axes in panels.values():
        values, written, framed = cells(axes)
        assert values.tolist() == expected
        assert written[1] == ["438.0", "374.0", "822.0"]
        assert written[0][2] == "1846"
        assert framed == [(1, 1)]
        assert names(axes.get_xticklabels()) == list(SCHEDULES)
        assert names(axes.get_yticklabels()) == list(FUSIONS)
        assert axes.yaxis_inverted(), "the first line is on top"


def test_equal_times_have_a_frame_each():
    sweep = sweep_of(fusions=FUSIONS[:2])
    _, panels = drawn(Sweep([{**row, "iteration_s": 0.1 * (1 + 1e-15 * at)} for at, row in enumerate(sweep.rows)]))
    assert len(cells(panels["resnet50"])[2]) == len(sweep.rows)


def test_darker_is_longer():
    _, panels = drawn(sweep_of(fusions=FUSIONS))
    (mesh,) = panels["resnet50"].collections
    seconds = mesh.get_array().ravel()
    shade = [sum(mesh.cmap(mesh.norm(value))[:3]) for value in sorted(seconds)]
    assert shade == sorted(shade, reverse=True)
    assert shade[0] < 2.9, "the lightest is not white"


def test_times_that_hardly_differ_look_alike():
    """Of 667.8 ms and 676.7 one was white, the other navy."""
    rows = [{**row, "iteration_s": 0.6678 + 0.0089 * (at % 2)} for at, row in enumerate(sweep_of(fusions=FUSIONS).rows)]
    _, panels = drawn(Sweep(rows))
    (mesh,) = panels["resnet50"].collections
    shortest, longest = (np.array(mesh.cmap(mesh.norm(value))[:3]) for value in (0.6678, 0.6767))
    assert abs(shortest - longest).max() < 0.15


def test_cells_of_speedups_are_centred_on_one():
    _, panels = drawn(sweep_of(models=MODELS[:2], ranks=RANKS, fusions=FUSIONS))
    expected = [f"{model}, {name}" for model in ("resnet50", "densenet201") for name in SCHEDULES[1:]]
    assert list(panels) == expected, "wfbp has no panel"
    for title, axes in panels.items():
        schedule = title.rpartition(" ")[2]
        values, written, framed = cells(axes)
        ratios = [
            [iteration_s(size, "wfbp", each) / iteration_s(size, schedule, each) for each in FUSIONS] for size in RANKS
        ]
        assert values.tolist() == ratios
        assert written == [[f"{value:.2f}" for value in line] for line in ratios]
        assert framed == [(line, FUSIONS.index("25MB")) for line in range(len(RANKS))]
        (mesh,) = axes.collections
        assert mesh.norm(1) == pytest.approx(0.5)
        assert mesh.norm(2) - 0.5 == pytest.approx(0.5 - mesh.norm(0.5))
        red, _, blue, _ = mesh.cmap(mesh.norm(values.max() if schedule == "dear" else values.min()))
        assert (blue > red) == (schedule == "dear")


def test_the_scale_of_speedups_ends_at_the_largest():
    figure, _ = drawn(sweep_of(ranks=RANKS, fusions=FUSIONS))
    slowest = iteration_s(64, "sequential", "none") / iteration_s(64, "wfbp", "none")
    (scale,) = (axes for axes in figure.axes if not axes.get_title())
    assert names(scale.get_xticklabels()) == [f"{1 / slowest:.2f}", "1.00", f"{slowest:.2f}"]
    assert scale.get_xlim() == pytest.approx((1 / slowest, slowest))


def test_bars_are_split():
    figure, panels = drawn(sweep_of(models=MODELS[:2]))
    for axes in panels.values():
        parts = [[(bar.get_x(), bar.get_width()) for bar in part] for part in axes.containers]
        for line, schedule in enumerate(SCHEDULES):
            exposed = 1e3 * exposed_s(64, schedule, "25MB")
            starts, widths = zip(*(part[line] for part in parts), strict=True)
            assert widths == pytest.approx((300, exposed, 10))
            assert starts == pytest.approx((0, 300, 300 + exposed))
        assert names(axes.get_yticklabels()) == list(SCHEDULES)
        texts = names(axes.texts)
        assert " 374.0 ms, speed-up 1.17" in texts
        assert "512.0" in texts, "exposed by sequential"
        (bounds,) = axes.collections
        assert [path.vertices[0, 0] for path in bounds.get_paths()] == pytest.approx([364, 332, 556])
    assert names(figure.legends[0].get_texts()) == ["compute", "exposed communication", "updates and the rest", "bound"]


def test_a_bar_has_no_sign_for_what_takes_no_time():
    sweep = sweep_of(schedules=("dear",))
    figure, _ = drawn(Sweep([{**row, "iteration_s": row["iteration_s"] - UPDATE_S} for row in sweep.rows]))
    assert names(figure.legends[0].get_texts()) == ["compute", "exposed communication", "bound"]


LARGE = {"models": MODELS, "ranks": RANKS, "fusions": FUSIONS}
KINDS = {
    "bar": {"schedules": ("dear",)},
    "bars": {"models": MODELS},
    "times": {"fusions": FUSIONS},
    "large times": {"models": MODELS, "fusions": FUSIONS},
    "curves": {"ranks": RANKS},
    "large curves": {"models": MODELS, "ranks": RANKS},
    "curves of fusions": LARGE | {"schedules": ("wfbp",)},
    "speedups": {"ranks": RANKS[:2], "fusions": FUSIONS[:2], "schedules": ("dear",)},
    "large speedups": LARGE,
}


@pytest.mark.parametrize("varied", KINDS.values(), ids=KINDS)
def test_all_that_is_written_can_be_read(varied):
    """Nothing is cut off, and no two texts lie on each other."""
    figure, _ = drawn(sweep_of(**varied))
    texts = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        ticks = [label for axis in (axes.xaxis, axes.yaxis) for label in seen(axis)] if axes.axison else []
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *ticks]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    for text, box in boxes:
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1, text
        assert 0 <= box.y0 < box.y1 <= figure.bbox.y1, text
    met = [(one, other) for (one, first), (other, second) in combinations(boxes, 2) if first.overlaps(second)]
    assert not met
    assert "Predicted, with ring on the network 10gbit,50us (assumed)" in names(figure.texts)


@pytest.mark.parametrize("kind", ["bar", "times", "curves", "speedups"])
def test_no_time_at_all_can_be_drawn(kind):
    zero = dict.fromkeys(("iteration_s", "compute_s", "exposed_comm_s", "bound_s"), 0.0)
    drawn(Sweep([{**row, **zero, "speedup_vs_wfbp": 1.0} for row in sweep_of(**KINDS[kind]).rows]))


@pytest.mark.parametrize(("flags", "title"), [
    ([], "Where the time of an iteration goes: 64 ranks, fusion 25MB"),
    (["--ranks", "4,8", "--fusion", "none,25MB"], "Speed-up over wfbp by ranks and fusion"),
])  # fmt: skip
def test_the_command_draws(flags, title, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    file = tmp_path / "sweep.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters as letters
        done = CliRunner().invoke(app, ["simulate", *flags, "--jitter", "5%", "--plot", str(file)])
    assert done.exit_code == 0, done.output
    text = file.read_text()
    assert title in text
    assert "Predicted, with ring on the network 10gbit,50us (assumed)" in text
    assert "jitter 5%" in text


@pytest.mark.parametrize(("file", "said"), [
    ("sweep", "--plot 'sweep' must end in .png, .pdf or .svg"),
    ("sweep.abc", "--plot 'sweep.abc' must end in .png, .pdf or .svg"),
    ("sweep.gif", "--plot 'sweep.gif' must end in .png, .pdf or .svg"),
    ("none/sweep.png", "--plot 'none/sweep.png' cannot be written: there is no folder 'none'"),
    (".", "--plot '.' cannot be written: it is a folder"),
])  # fmt: skip
def test_a_picture_that_cannot_be_is_refused_before_the_work(file, said, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    refused(file, said, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["sweep.PNG", "sweep.Pdf", "sweep.SVG"])
def test_endings_may_be_in_capitals(name, tmp_path):
    pytest.importorskip("matplotlib")
    begins = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    done = CliRunner().invoke(app, ["simulate", "--ranks", "4", "--plot", str(tmp_path / name)])
    assert done.exit_code == 0, done.output
    (file,) = tmp_path.iterdir()
    assert file.name == name
    assert file.read_bytes().startswith(begins[file.suffix.lower()])


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    said = "--plot needs matplotlib: pip install matplotlib (our extra 'plot')"
    refused("sweep.png", said, tmp_path, monkeypatch)


def refused(file, said, tmp_path, monkeypatch):
    """The command ends with this one line, and has neither simulated nor written anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dear_mpi.cli.simulate.run_simulation", lambda *_: pytest.fail("it has begun"))
    done = CliRunner().invoke(app, ["simulate", "--json", "rows.json", "--plot", file])
    assert (done.exit_code, done.stderr) == (2, f"error: {said}\n")
    assert list(tmp_path.iterdir()) == []
