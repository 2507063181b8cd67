"""Files of a timeline: a trace has what Perfetto needs, a picture what a reader does; bad input is told early."""

import json
import sys

import pytest
from matplotlib.text import Text
from typer.testing import CliRunner

from dear_mpi.cli.app import app
from dear_mpi.reporting.output import printable
from dear_mpi.see.figure import legend_below, panels, write_figure
from dear_mpi.see.timeline.picture import COLORS, INSIDE_COLORS, draw_timeline
from dear_mpi.see.timeline.trace import trace
from dear_mpi.training.log.spans import COMPUTE, LANES, WIRE, Iteration, Rank, Run, Span, Timeline
from tests.cli_checks import assert_one_line
from tests.trace_schema import assert_schema

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


def of_kind(content, phase):
    return [event for event in content["traceEvents"] if event["ph"] == phase]


# The trace -----------------------------------------------------------------------------------------------------------


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
    assert list(assert_trace(content).values()) == [
        *("wfbp: rank 0", "wfbp: rank 1"),
        *("dear: rank 0", "dear: rank 1", "dear: rank 2"),
    ]
    assert content["otherData"]["times"] == "predicted"
    begins = {event["pid"]: event["ts"] for event in reversed(of_kind(content, "X"))}
    assert sorted(begins.values()) == [0, 0, 1e5, 1e5, 2e5], "each run begins at 0"


def test_a_trace_says_which_ranks_are_left_out():
    few = Run("dear", run_of().ranks, 100)
    assert trace(timeline_of(few))["otherData"]["clocks"].endswith("; 2 of 100 ranks")


def test_spans_that_touch_do_so_in_the_file():
    third = 10 + 1 / 3
    spans = (Span(COMPUTE, "forward", "a", 10.0, third), Span(COMPUTE, "forward", "b", third, third + 1e-7))
    content = trace(timeline_of(Run("mine", (Rank("rank 0", (Iteration(0, 10.0, 11.0),), spans),), 1)))
    one, other = of_kind(content, "X")
    assert round(one["ts"] + one["dur"], 3) == other["ts"]


# The picture ---------------------------------------------------------------------------------------------------------


def drawn(timeline):
    """The figure, laid out, and its panels."""
    pytest.importorskip("matplotlib")
    figure = draw_timeline(timeline)
    figure.draw_without_rendering()
    return figure, figure.axes


def said(figure):
    return " ".join(text.get_text() for text in figure.texts)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def extents(axes, color):
    """(begin, end) in ms of all bars of a colour."""
    from matplotlib.colors import to_rgb

    return sorted(
        (round(path.vertices[:, 0].min(), 6), round(path.vertices[:, 0].max(), 6))
        for collection in axes.collections
        if len(collection.get_facecolor()) and to_rgb(collection.get_facecolor()[0]) == to_rgb(color)
        for path in collection.get_paths()
    )


def test_a_picture_shows_the_last_two_iterations_in_ms_and_shades_what_is_exposed():
    figure, (axes,) = drawn(timeline_of())
    assert "Live: resnet50 under wfbp on 2 ranks" in said(figure)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        "rank 0  compute",
        "wire",
        "rank 1  compute",
        "wire",
    ]
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


def test_a_title_has_the_class_of_a_file_on_the_same_line():
    figure, (panel,) = drawn(timeline_of(run_of("folder/mine.py:Mine")))
    assert "under mine.py:Mine" in said(figure)
    assert panel.get_title().startswith("mine.py:Mine: the last iteration")


def test_a_picture_of_several_runs_has_a_panel_for_each_on_one_scale():
    figure, panels = drawn(timeline_of(run_of("wfbp"), run_of("dear", iterations=1)))
    taken = "the last iteration takes 4000 ms, of which 750.0 are exposed"
    assert [axes.get_title() for axes in panels] == [f"wfbp: {taken}", f"dear: {taken}"]
    assert len({axes.get_xlim() for axes in panels}) == 1
    assert "under" not in said(figure)


def test_the_title_of_predicted_runs_is_their_result():
    """Live ones show single iterations, which tell nothing about which schedule is faster."""
    runs = run_of("wfbp"), run_of("dear", iterations=1)
    assert "An iteration takes 4000 ms under dear, 4000 under wfbp" not in said(drawn(timeline_of(*runs))[0])
    figure, _ = drawn(timeline_of(*runs, live=False))
    assert "An iteration takes 4000 ms under dear, 4000 under wfbp" in said(figure)
    assert "resnet50 on 2 ranks" in said(figure)


def test_an_svg_is_the_same_file_each_time(tmp_path):
    for name in ("a.svg", "b.svg"):
        write_figure("--plot", tmp_path / name, draw_timeline(timeline_of()))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_picture_ends_where_the_last_iteration_does():
    """What comes behind it, such as a flush, would look as if it belonged to it."""
    rank = rank_of()
    flush = Span(COMPUTE, "wait", "wait for all_reduce of bucket 0", 22.0, 30.0)
    longer = run_of("dear", ranks=1, iterations=2)
    longer = Run(
        "dear", (Rank("rank 0", (Iteration(0, 10.0, 30.0), Iteration(1, 30.0, 60.0)), longer.ranks[0].spans),), 1
    )
    _, (axes, _) = drawn(timeline_of(Run("wfbp", (Rank("rank 0", rank.iterations, (*rank.spans, flush)),), 1), longer))
    assert axes.get_xlim() == pytest.approx((0, 50000))
    assert extents(axes, "#D55E00") == [(3000, 3750), (7000, 7750)]


def test_a_picture_has_room_for_eight_ranks_and_says_what_is_left_out():
    figure, (axes,) = drawn(timeline_of(run_of(ranks=20)))
    assert len(axes.get_yticks()) == 16
    assert "not shown: ranks from 8 on" in said(figure)
    figure, panels = drawn(timeline_of(*(run_of(f"mine {number}", ranks=3) for number in range(8))))
    assert [len(axes.get_yticks()) for axes in panels] == [2] * 6
    assert "not shown: 2 more runs and ranks from 1 on" in said(figure)


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


# The commands --------------------------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


QUICK = ("--threads", 2, "--model", "mlp", "--fusion", "none", "--iterations", 4)


def test_train_writes_a_trace_and_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    files = tmp_path / "timeline.json", tmp_path / "timeline.svg"
    done = run("train", *QUICK, "--timeline", ",".join(map(str, files)))
    assert done.exit_code == 0, done.output
    content = json.loads(files[0].read_text())
    assert assert_trace(content, steps=True) == {0: "rank 0", 1: "rank 1"}
    names = [event["name"] for event in of_kind(content, "i") if event["pid"] == 0]
    assert names == ["iteration 1", "iteration 2", "iteration 3"]
    assert content["otherData"]["schedule"] == "dear"
    assert files[1].read_text().startswith("<?xml")


def test_compare_has_a_group_for_each_schedule(tmp_path):
    file = tmp_path / "timeline.json"
    done = run("compare", *QUICK, "--schedules", "wfbp,dear", "--link", "10gbit,1us", "--timeline", file)
    assert done.exit_code == 0, done.output
    content = json.loads(file.read_text())
    titles = [f"{schedule}: rank {rank}" for schedule in ("wfbp", "dear") for rank in range(2)]
    assert list(assert_trace(content, steps=True).values()) == titles
    said = content["otherData"]
    assert (said["schedule"], said["emulated_link"]) == (["wfbp", "dear"], "10 Gbit/s, 1 us")


def test_simulate_has_a_group_for_each_row(tmp_path):
    file = tmp_path / "timeline.json"
    done = run("simulate", "--ranks", "2,4", "--schedules", "wfbp,dear", "--timeline", file)
    assert done.exit_code == 0, done.output
    content = json.loads(file.read_text())
    rows = [f"{schedule}, {ranks} ranks" for ranks in (2, 4) for schedule in ("wfbp", "dear")]
    assert list(assert_trace(content).values()) == [f"{row}: each of {row[-7]} ranks" for row in rows]
    assert content["otherData"]["times"] == "predicted"


COMMANDS = (("train", "--threads", 1), ("compare", "--threads", 1), ("simulate",))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ("x.txt", "--timeline 'x.txt' must end in .json, .png, .pdf or .svg"),
        ("x", "--timeline 'x' must end in"),
        ("x.json,", "--timeline takes one or several with commas between them, not 'x.json,'"),
        ("x.json,x.json", "--timeline must be different files, not both 'x.json'"),
        ("nowhere/x.json", "--timeline 'nowhere/x.json' cannot be written: there is no folder 'nowhere'"),
        ("nowhere/x.png", "--timeline 'nowhere/x.png' cannot be written: there is no folder 'nowhere'"),
    ],
)
def test_files_that_cannot_be_written_are_refused_before_the_work(command, files, said):
    assert_one_line(run(*command, "--timeline", files), said)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_file_of_another_flag_is_refused(command, tmp_path):
    file = tmp_path / "mine.json"
    said = f"--json and --timeline must be different files, not both '{file}'"
    assert_one_line(run(*command, "--json", file, "--timeline", file), said)


@pytest.mark.parametrize(
    ("command", "flags", "said"),
    [
        ("train", ["--model", "synthetic:mine.json", "--json", "mine.json"], "--json 'mine.json' {} --model"),
        ("train", ["--schedule", "s.py:Lazy", "--profile", "s.py"], "--profile 's.py' {} --schedule"),
        ("train", ["--data", "d.npz", "--timeline", "d.json,d.png", "--save", "d.npz"], "--save 'd.npz' {} --data"),
        ("compare", ["--model", "synthetic:mine.json", "--timeline", "mine.json"], "--timeline 'mine.json' {} --model"),
        ("compare", ["--schedules", "wfbp,s.py:Lazy", "--json", "s.py"], "--json 's.py' {} --schedules"),
        ("compare", ["--algorithm", "auto:mine.json", "--json", "mine.json"], "--json 'mine.json' {} --algorithm"),
    ],
)
def test_what_a_run_reads_is_not_written_over(command, flags, said, tmp_path, monkeypatch):
    """The table of a model was moved to mine.json.old, and then it was not there."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine.json", "s.py", "d.npz"):
        (tmp_path / name).write_text("{}")
    assert_one_line(run(command, "--threads", 1, *flags), said.format("would write over the file of"))
    assert {path.name for path in tmp_path.iterdir()} == {"mine.json", "s.py", "d.npz"}


def test_iterations_that_take_no_time_have_a_picture(tmp_path):
    file = tmp_path / "x.png"
    done = run("simulate", "--ranks", 1, "--forward-time", 0, "--timeline", file)
    assert done.exit_code == 0, done.output
    assert file.stat().st_size > 0


@pytest.mark.parametrize("command", COMMANDS)
def test_without_matplotlib(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    said = "--timeline needs matplotlib: pip install matplotlib (our extra 'plot')"
    assert_one_line(run(*command, "--timeline", tmp_path / "x.png"), said)


def test_no_two_kinds_look_alike():
    looks = [*COLORS.values(), *INSIDE_COLORS.values()]
    assert len(set(looks)) == len(looks)


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
