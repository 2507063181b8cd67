"""The times of a page are those of ``collectives/program/cost.py``, to within 2 % of the whole time."""

import os
from itertools import product

import pytest

from dear_mpi.collectives import ALGORITHMS, programs
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.contrib.pages.algorithms import one_size
from dear_mpi.contrib.pages.priced import BETWEEN, GAMMA

NAMES = [name for name in ALGORITHMS if runner_of(name) == "messages"]
SIZES = (2, 3, 5, 8, 12) if os.environ.get("EVERY") else (3, 8)
SHARE, ITEMSIZE = 60_060, 4  # elements of a shard, in equal parts
NETWORKS = [(2e-5, 8e-10), (1e-3, 1e-9), (1e-6, 1e-10), (1e-7, 8e-8), (1e-4, 1e-10)]  # alpha, seconds of a byte
ASK = """({ data, networks }) => networks.map((network) => {
    const { seconds, entered, nbytes } = priceOf(readProgram(data), network);
    return { seconds, entered, nbytes };
})"""


@pytest.mark.parametrize("name", NAMES)
def test_the_page_prices_as_we_do(name, scripts):
    page = scripts("units.js", "price.js", "program.js")
    for collective, size, hosts in product(ALGORITHMS[name], SIZES, (1, 2)):
        data = one_size(name, collective, size, hosts=hosts, rates=None, pieces=3)
        count = size * SHARE
        asked = [{"alpha": a, "whole": b * count * ITEMSIZE, "bytes": count * ITEMSIZE} for a, b in NETWORKS]
        found = page.evaluate(ASK, {"data": data, "networks": asked})
        layout = tuple(rank * hosts // size for rank in range(size))
        written = programs(name, collective, size, hosts=layout, pieces=3)
        for one, (alpha, beta) in zip(found, NETWORKS, strict=True):
            between = {"hosts": layout, "between": Network(BETWEEN * alpha, beta)} if hosts > 1 else {}
            due = cost(written, count, ITEMSIZE, Network(alpha, beta, GAMMA * beta, **between))
            error_s = 0.02 * due.time_s
            assert one["seconds"] == pytest.approx(due.time_s, abs=error_s), (collective, size, hosts, alpha, beta)
            assert [times[-1] for times in one["entered"]] == pytest.approx(due.done_s, abs=error_s)
            assert one["nbytes"] == pytest.approx(due.nbytes)
