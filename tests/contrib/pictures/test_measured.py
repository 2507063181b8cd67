"""Pictures of measured runs: what is drawn, in which colours, and that it can be read."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from dear_mpi.bench.run import bound_us
from dear_mpi.bench.saved import Run
from dear_mpi.collectives.program.cost import Network
from dear_mpi.contrib.pictures.measured import draw_runs
from tests.bench.runs import run_of
from tests.cli_checks import assert_one_line, invoke, succeed
from tests.contrib.pictures.readable import assert_readable

NETWORK = Network(alpha=1e-6, beta=1e-9)


def figure_of(*runs, network=NETWORK):
    if network is not None:
        runs = [replace(run, rows=[replace(row, bound_us=bound_us(row, network)) for row in run.rows]) for run in runs]
    figure = draw_runs([asdict(row) | {"run": Path(run.name).stem} for run in runs for row in run.rows])
    figure.draw_without_rendering()
    return figure


def made(name="one", **how):
    return run_of(np.random.default_rng(1), name=f"{name}.json", **how)


def lines(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def words(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_column_has_times_above_bandwidths():
    run = made()
    time, busbw = figure_of(run).axes
    assert time.get_ylabel() == "time (us)"
    assert busbw.get_ylabel() == "busbw (GB/s)"
    for name in ("native", "ring"):
        rows = [row for row in run.rows if row.algorithm == name]
        assert list(lines(time)[name].get_xdata()) == [row.bytes for row in rows]
        assert list(lines(time)[name].get_ydata()) == [row.p50_us for row in rows]
        assert list(lines(busbw)[name].get_ydata()) == pytest.approx([row.busbw_GBps for row in rows])
        band = time.collections[["native", "ring"].index(name)].get_paths()[0].vertices
        assert {row.ci_low_us for row in rows} | {row.ci_high_us for row in rows} <= set(band[:, 1])
    assert (time.get_xscale(), time.get_yscale(), busbw.get_yscale()) == ("log", "log", "log")
    assert list(lines(time)["dashed: bound"].get_ydata()) == [bound_us(row, NETWORK) for row in rows]
    assert "dashed: bound" not in lines(figure_of(run, network=None).axes[0])


def test_a_row_of_panels_for_each_collective_and_number_of_ranks():
    run = made(sizes=(64, 1024))
    rows = [replace(row, collective=kind) for kind in ("all_reduce", "all_gather") for row in run.rows]
    figure = figure_of(replace(run, rows=[*rows, *(replace(row, ranks=2) for row in run.rows)]))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["all_reduce, 4 ranks", "", "all_gather, 4 ranks", "", "all_reduce, 2 ranks", ""]


def test_all_that_is_written_can_be_read():
    kinds = ("all_reduce", "broadcast", "all_gather")
    saved = [made(name) for name in ("one", "two")]
    saved = [replace(run, rows=[replace(row, collective=kind) for kind in kinds for row in run.rows]) for run in saved]
    assert_readable(figure_of(*saved))


# The commands --------------------------------------------------------------------------------------------------------


def save(name, run):
    Path(name).write_text(json.dumps({"rows": [asdict(row) for row in run.rows]}))
    return name


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
@pytest.mark.usefixtures("here")
def test_saved_runs_are_drawn(ending):
    done = invoke("plot", save("one.json", made()), save("other.json", made(slow=1.3)), "--plot", f"both.{ending}")
    assert (done.exit_code, done.output) == (0, "")
    assert Path(f"both.{ending}").read_bytes()[:4] == {"png": b"\x89PNG", "svg": b"<?xm", "pdf": b"%PDF"}[ending]


BENCH = ("bench", "--threads", 2, "--algorithms", "ring", "--sizes", "4B:1KiB", "--budget", "10ms")


@pytest.mark.usefixtures("here")
def test_a_run_draws_itself():
    succeed(*BENCH, "--steps", "--plot", "mine.svg", "--timeline", "steps.svg")
    assert all("<svg" in Path(name).read_text("utf-8") for name in ("mine.svg", "steps.svg"))
    assert_one_line(invoke(*BENCH, "--plot", "x.gif"), "--plot 'x.gif' must end in .png or .pdf or .svg")


@pytest.mark.usefixtures("here")
def test_what_cannot_be_drawn_is_one_line():
    save("none.json", Run("", [replace(row, bytes=0, count=0) for row in run_of(sizes=(4,)).rows]))
    assert_one_line(invoke("plot", "none.json"), "there is nothing to draw by size: no row has one")
