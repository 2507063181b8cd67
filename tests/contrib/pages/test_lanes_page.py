"""What a page of schedules is made of: lanes of a timeline, and predictions among which sliders choose."""

import json
import re
from itertools import pairwise

import pytest

from dear_mpi.contrib.look import LANES, window_of
from dear_mpi.contrib.pages.lanes import KINDS, Names, lanes_of
from dear_mpi.contrib.pages.predicted import BANDWIDTHS, LATENCIES, Grid
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.simulate.table import timeline_of
from tests.cli_checks import succeed
from tests.markdown import ROOT

SMALL = {"modules": [{"name": f"layer {n}", "params": [100_000, 100], "fwd_flops": 1 + n % 3} for n in range(6)]}


@pytest.fixture
def small(tmp_path):
    file = tmp_path / "small.json"
    file.write_text(json.dumps(SMALL))
    return f"synthetic:{file}"


@pytest.fixture
def predicted(small):
    how = {"models": (small,), "ranks": (4,), "schedules": ("wfbp", "dear"), "fusions": ("none",), "forward_s": 0.01}
    return simulate(Settings(network="1gbit,50us", **how), traced=True)


def data_of(file):
    return json.loads(re.search(r"^const DATA = (.*);$", file.read_text(), re.MULTILINE)[1])


def test_the_documented_example_shows_that_schedules_differ(tmp_path):
    """Each of its rows takes another time: a page with three equal rows teaches nothing."""
    page = (ROOT / "docs" / "contrib" / "pages.md").read_text("utf-8")
    (words,) = re.findall(r"dear-mpi (simulate .*) --html", page)
    succeed(*words.split(), "--json", tmp_path / "rows.json")
    times = [row["iteration_s"] for row in json.loads((tmp_path / "rows.json").read_text())]
    assert len(times) == 3
    assert all(later < 0.95 * sooner for sooner, later in pairwise(times))


def test_lanes_are_those_of_the_timeline(predicted):
    """Each span of the window, at its times, within a rounding; in two iterations, from zero on."""
    timeline, names = timeline_of(predicted), Names()
    for run, shown in zip(timeline.runs, lanes_of(timeline, names), strict=True):
        (rank,), (lane,) = run.ranks, shown["ranks"]
        begin_s, end_s = window_of(run)
        found = [lane["spans"][at : at + 5] for at in range(0, len(lane["spans"]), 5)]
        due = [span for span in rank.spans if span.begin_s < end_s - 1e-9 and span.end_s > begin_s + 1e-9]
        assert [names.rows()[row[2]][0] for row in found] == [span.name for span in due]
        assert [(LANES[row[0]], KINDS[row[1]]) for row in found] == [(span.lane, span.kind) for span in due]
        for (*_, begin, length), span in zip(found, due, strict=True):
            assert begin_s + begin * shown["unit"] == pytest.approx(max(span.begin_s, begin_s), abs=shown["unit"])
            end = begin_s + (begin + length) * shown["unit"]
            assert end == pytest.approx(min(span.end_s, end_s), abs=2 * shown["unit"])
        assert len(lane["borders"]) == 3
        assert shown["seconds"] == pytest.approx(end_s - begin_s)


def test_a_place_of_the_sliders_is_what_is_predicted_there(predicted, small):
    """As by a run of its own, with that network and that fusion."""
    grid = Grid(predicted)
    assert len(grid.places) == len(BANDWIDTHS) * len(LATENCIES) * len(grid.fusions) - 1
    place = BANDWIDTHS.index(0.5), LATENCIES.index(4), grid.fusions.index("cut:1MB")
    labels = [slider["labels"][at] for slider, at in zip(grid.sliders, place, strict=True)]
    assert labels == ["500 Mbit/s", "200 us", "cut:1MB"]
    how = {"models": (small,), "ranks": (4,), "schedules": ("wfbp", "dear"), "forward_s": 0.01}
    alone = simulate(Settings(network="500mbit,200us", fusions=("cut:1MB",), **how))
    for each, other in zip(predicted, alone, strict=True):
        found = grid.at(each, *place)
        assert found.row["iteration_s"] == pytest.approx(other.row["iteration_s"], rel=1e-12)
        assert found.row["bound_s"] == pytest.approx(other.row["bound_s"], rel=1e-12)
        assert found.row["iteration_s"] != pytest.approx(each.row["iteration_s"])


def test_simulate_writes_every_place(small, tmp_path):
    file = tmp_path / "page.html"
    words = ("simulate", "--model", small, "--ranks", "4", "--network", "1gbit,50us", "--fusion", "cut:1MB")
    succeed(*words, "--schedules", "wfbp,dear", "--html", file)
    data = data_of(file)
    assert len(data["states"]) == len(BANDWIDTHS) * len(LATENCIES) * len(data["sliders"][2]["labels"])
    given = data["states"][",".join(str(slider["at"]) for slider in data["sliders"])]
    assert [run["name"] for run in given["runs"]] == ["wfbp", "dear"]
    for run, figure in zip(given["runs"], given["figures"], strict=True):
        assert figure["iteration"] == pytest.approx(run["last"], rel=1e-6)
    assert file.stat().st_size < 2 * 10**6


def test_compare_writes_what_it_measured(tmp_path):
    file = tmp_path / "page.html"
    words = ("compare", "--threads", "2", "--model", "mlp", "--schedules", "wfbp,dear", "--iterations", "3")
    succeed(*words, "--fusion", "none", "--html", file)
    data = data_of(file)
    assert data["live"]
    assert data["sliders"] == []
    (state,) = data["states"].values()
    assert [run["name"] for run in state["runs"]] == ["wfbp", "dear"]
    assert [len(run["ranks"]) for run in state["runs"]] == [2, 2]
    assert all(figure["verdict"] for figure in state["figures"])
