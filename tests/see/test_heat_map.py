"""Heat maps of links: a cell for each direction, colours that mean slow, borders of hosts."""

import itertools

import numpy as np
import pytest

from dear_mpi.see.measured import MOST_NUMBERED, draw_heat_maps


def drawn(hosts):
    """Both panels of links that are the slower, the higher the number of their source."""
    rows = [
        {"source": source, "dest": dest, "latency_us": 1.0 + source, "GBps": 10.0 / (1 + source)}
        for source, dest in itertools.permutations(range(len(hosts)), 2)
    ]
    return draw_heat_maps(rows, hosts, "over threads").axes[:2]


def test_rows_are_sources_and_columns_are_dests():
    for axes, last in zip(drawn("aab"), (3.0, 10 / 3), strict=True):
        values = np.ma.filled(axes.images[0].get_array(), np.nan)
        assert np.isnan(values.diagonal()).all()
        assert values[2, 0] == values[2, 1] == last
        assert (axes.get_ylabel(), axes.get_xlabel()) == ("from rank", "to rank")


def test_slow_is_dark_in_both():
    for axes in drawn("aab"):
        image = axes.images[0]
        brightness = [sum(image.cmap(image.norm(image.get_array()[rank, (rank + 1) % 3]))[:3]) for rank in range(3)]
        assert brightness == sorted(brightness, reverse=True)


@pytest.mark.parametrize(("hosts", "borders"), [("aaaa", 0), ("aabb", 1), ("abab", 3)])
def test_borders_are_between_hosts(hosts, borders):
    for axes in drawn(hosts):
        assert len(axes.lines) == 2 * borders  # across and down
        assert len(axes.texts) == 12


def test_many_ranks_have_no_numbers_and_few_ticks():
    for axes in drawn("a" * (MOST_NUMBERED + 1)):
        assert not axes.texts
        assert len(axes.get_xticks()) <= MOST_NUMBERED


def test_links_that_are_all_alike():
    rows = [{"source": one, "dest": 1 - one, "latency_us": 1.0, "GBps": 2.0} for one in range(2)]
    assert draw_heat_maps(rows, "ab", "").axes[0].texts[0].get_text() == "1"
