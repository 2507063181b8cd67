"""The price that sliders show is the one of ``collectives/program/cost.py``: both are asked about the same programs."""

from itertools import product

import pytest

from dear_mpi.collectives import ALGORITHMS, programs
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.contrib.pages.steps import steps_of
from tests.contrib.pages.slow import SlowNetwork, SlowSimulation

SIZES, COUNTS, ITEMSIZE = (1, 2, 3, 5, 8, 12), (1_000_003, 7), 4
PRICES = {"alpha": 2e-5, "beta": 8e-10, "gamma": 1e-10}
BETWEEN = {"alpha": 5e-5, "beta": 5e-10}
SLOW = [((), 1.0), ((1,), 3.7), ((0, 1), 5.0), ((0,), 1.5)]
ASK = """({ data, cases }) => cases.map(({ count, prices }) => {
    const { entered, nbytes } = priceOf(readProgram(data), count, 4, network(prices));
    return { entered, nbytes };
})"""
SCRIPTS = ("units.js", "heap.js", "fair.js", "network.js", "price.js", "program.js")


class Entered(SlowSimulation):
    """One that notes when each rank enters each step."""

    def __init__(self, *given):
        super().__init__(*given)
        self.entered = [[] for _ in self.ranks]

    def enter(self, time_s, index):
        self.entered[index].append(time_s)
        super().enter(time_s, index)


def by_python(written, count, network):
    borders = Partition.of(count, len(written)).chunks(written[0].parts)
    run = Entered(written, [border * ITEMSIZE for border in borders], network)
    run.to_the_end()
    sent = [sum(run.nbytes(send.chunks) for step in each.steps for send in step.sends) for each in written]
    return {"entered": run.entered, "nbytes": sent}


def cases(name):
    """Programs of an algorithm, with the hosts of their ranks."""
    for collective, size, two in product(ALGORITHMS[name], SIZES, (False, True)):
        hosts = tuple(rank * 2 // size for rank in range(size)) if two else (0,) * size
        yield programs(name, collective, size, hosts=hosts, pieces=3), hosts


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_page_prices_as_we_do(name, scripts):
    page = scripts(*SCRIPTS)
    for written, hosts in cases(name):
        levels = {"hosts": hosts, "between": Network(**BETWEEN)} if any(hosts) else {}
        told = {"hosts": hosts, "between": BETWEEN} if any(hosts) else {}
        asked = list(product(COUNTS, SLOW))
        prices = [
            {"count": count, "prices": {**PRICES, **told, "slow": slow, "factor": factor}}
            for count, (slow, factor) in asked
        ]
        found = page.evaluate(ASK, {"data": steps_of(written, hosts), "cases": prices})
        for one, (count, (slow, factor)) in zip(found, asked, strict=True):
            due = by_python(written, count, SlowNetwork(**PRICES, **levels, slow=slow, factor=factor))
            assert one["nbytes"] == due["nbytes"]
            for mine, ours in zip(one["entered"], due["entered"], strict=True):
                assert mine == pytest.approx(ours, rel=1e-9, abs=0), (slow, factor, hosts)


def test_another_price_is_noticed(scripts):
    """The comparison above fails for a network that differs a little."""
    written = programs("ring", "all_reduce", 4)
    asked = {"data": steps_of(written, [0] * 4), "cases": [{"count": 1000, "prices": PRICES}]}
    (found,) = scripts(*SCRIPTS).evaluate(ASK, asked)
    due = by_python(written, 1000, SlowNetwork(**{**PRICES, "alpha": PRICES["alpha"] * (1 + 1e-6)}))
    assert found["entered"][0] != pytest.approx(due["entered"][0], rel=1e-9, abs=0)
