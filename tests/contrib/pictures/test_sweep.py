"""Pictures of a sweep: which one is chosen, what it shows, that it can be read, and errors before the work."""

from itertools import product

import matplotlib
import pytest

from dear_mpi.contrib.pictures.sweep import draw_sweep
from tests.cli_checks import invoke, succeed
from tests.contrib.pictures.readable import assert_readable

MODELS = tuple(f"synthetic:{name}" for name in ("resnet50", "densenet201", "inceptionv4", "bert_base", "bert_large"))
SCHEDULES = ("wfbp", "dear", "sequential")
RANKS = (2, 4, 8, 16, 32, 64)
FUSIONS = ("none", "25MB", "cut:4MB", "buckets:8")
ORIGIN = "Predicted, with ring on the network 10gbit,50us (assumed)"
HEADING = f"{ORIGIN}\ncompute: 0.1 s forward and 0.2 s backward (assumed)"
COMPUTE_S = 0.3
EXPOSED_S = {"wfbp": 0.002, "dear": 0.001, "sequential": 0.008}  # times the ranks and the place of the fusion
UPDATE_S = 0.01


def exposed_s(ranks, schedule, fusion):
    """A made-up time that is another one in each row, and least with 25MB."""
    return EXPOSED_S[schedule] * ranks * {"none": 3, "25MB": 1, "cut:4MB": 1.5, "buckets:8": 2}[fusion]


def iteration_s(ranks, schedule, fusion):
    return COMPUTE_S + UPDATE_S + exposed_s(ranks, schedule, fusion)


def sweep_of(models=MODELS[:1], ranks=(64,), schedules=SCHEDULES, fusions=("25MB",)):
    return [
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


def drawn(rows):
    """The figure of a sweep, laid out, and its panels by their titles."""
    figure = draw_sweep(rows, HEADING)
    figure.draw_without_rendering()
    return figure, {axes.get_title(): axes for axes in figure.axes if axes.get_title()}


def names(ticks):
    return [tick.get_text() for tick in ticks]


def test_curves_are_times_bounds_and_compute():
    figure, panels = drawn(sweep_of(models=MODELS, ranks=RANKS[::-1]))
    assert list(panels) == ["resnet50", "densenet201", "inceptionv4", "bert_base", "bert_large"]
    for axes in panels.values():
        lines = dict(zip(SCHEDULES, zip(axes.lines[::2], axes.lines[1::2], strict=True), strict=True))
        for schedule, (line, bound) in lines.items():
            assert line.get_label() == schedule
            assert list(line.get_xdata()) == list(RANKS)
            times_ms = [1e3 * iteration_s(size, schedule, "25MB") for size in RANKS]
            assert list(line.get_ydata()) == pytest.approx(times_ms)
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
    assert names(legend.get_texts()) == [*SCHEDULES, "compute", "thin: bound"]


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


KINDS = {
    "bars": {"models": MODELS},
    "bars of fusions": {"models": MODELS[:2], "fusions": FUSIONS},
    "curves": {"models": MODELS, "ranks": RANKS},
    "curves of fusions": {"models": MODELS[:2], "ranks": RANKS, "fusions": FUSIONS},
}


@pytest.mark.parametrize("kind", ["bars", "bars of fusions", "curves of fusions"])
def test_all_that_is_written_can_be_read(kind):
    figure, _ = drawn(sweep_of(**KINDS[kind]))
    assert_readable(figure)
    assert ORIGIN in names(figure.texts)


@pytest.mark.parametrize("kind", ["bars", "curves"])
def test_no_time_at_all_can_be_drawn(kind):
    zero = dict.fromkeys(("iteration_s", "compute_s", "exposed_comm_s", "bound_s"), 0.0)
    drawn([{**row, **zero, "speedup_vs_wfbp": 1.0} for row in sweep_of(**KINDS[kind])])


@pytest.mark.parametrize(("flags", "title"), [
    ([], "Where the time of an iteration goes: 64 ranks, fusion 25MB"),
    (["--ranks", "4,8", "--fusion", "none,25MB"], "resnet50, fusion none"),
])  # fmt: skip
def test_the_command_draws(flags, title, tmp_path):
    file = tmp_path / "sweep.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters as letters
        succeed("simulate", *flags, "--straggler", "3:1.5", "--plot", file)
    text = file.read_text()
    assert title in text
    assert ORIGIN in text
    assert "straggler 3:1.5" in text


@pytest.mark.parametrize(("file", "said"), [
    ("sweep", "--plot 'sweep' must end in .png or .pdf or .svg"),
    ("none/sweep.png", "--plot 'none/sweep.png' cannot be written: there is no folder 'none'"),
    ("x.json", "--plot 'x.json' must end in .png or .pdf or .svg"),
])  # fmt: skip
def test_a_picture_that_cannot_be_is_refused_before_the_work(file, said, tmp_path, monkeypatch, here):
    monkeypatch.setattr("dear_mpi.cli.simulate.run_simulation", lambda *_: pytest.fail("it has begun"))
    done = invoke("simulate", "--json", "rows.json", "--plot", file)
    assert (done.exit_code, done.stderr) == (2, f"error: {said}\n")
    assert list(tmp_path.iterdir()) == []


def test_endings_may_be_in_capitals(tmp_path):
    succeed("simulate", "--ranks", "4", "--plot", tmp_path / "sweep.Pdf")
    assert (tmp_path / "sweep.Pdf").read_bytes().startswith(b"%PDF")
