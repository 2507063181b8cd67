"""Searches: they end, try nothing twice, find sizes near the best one, and are the same on any scale of time."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.models.synthetic import load_modules
from dear_mpi.reporting.units import parse_bytes
from dear_mpi.simulate.model import synthetic_model
from dear_mpi.simulate.network import read_network
from dear_mpi.simulate.prices import Prices
from dear_mpi.training.buckets.layout import Layout
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.virtual import Costs
from dear_mpi.training.fusion import fused
from dear_mpi.training.fusion.tuning import (
    HIGH,
    LOW,
    TRIALS,
    Search,
    cut_by,
    distinct_sizes,
    first_size,
    readable,
    size_text,
)
from dear_mpi.training.fusion.tuning import START as USUAL_START
from dear_mpi.training.schedules import SCHEDULES
from dear_mpi.training.virtual_trainer import VirtualTrainer
from tests.training_checks import EVERY

MODELS = {"resnet50": 0.05, "densenet201": 0.04, "bert_base": 0.25}  # seconds of forward; backward takes twice that
NETWORKS = ("10gbit,50us", "25gbit,200us")
RANKS = 16
FINER = (
    64 if EVERY else 16
)  # sizes between each power of two and the next, of which the best is what searches are held against


@dataclass(frozen=True)
class Problem:
    """A model on a network under a schedule: what an iteration takes by the size of buckets."""

    model: str
    network: str
    schedule: str = "dear"

    @cached_property
    def synthetic(self):
        forward_s, modules = MODELS[self.model], load_modules(self.model)
        return synthetic_model(self.model, modules, ranks=RANKS, forward_s=forward_s, backward_s=2 * forward_s)

    @property
    def layout(self):
        return self.synthetic.layout

    @cached_property
    def costs(self):
        segment = default_segment(range(RANKS))
        prices = Prices(read_network(self.network, RANKS).network, ranks=RANKS, segment_bytes=segment)

        def price(stage, bucket):
            key = "ring", stage.name, bucket.nbytes
            return prices.found[key] if key in prices.found else float(prices.seconds(*key[:2], key[2:])[0])

        return Costs(forward_s=self.synthetic.costs.forward_s, backward_s=self.synthetic.costs.backward_s, price=price)

    def predicted_s(self, fusion):
        """Seconds of an iteration."""
        schedule = SCHEDULES[self.schedule]
        rules = Rules(self.schedule, fused(fusion, self.layout), schedule)
        return VirtualTrainer(schedule, rules, self.costs).mean_s()

    def sizes(self, **how):
        return distinct_sizes(self.layout, LOW, HIGH, **how)

    @cached_property
    def known(self):
        return {}

    def seconds(self, fusion):
        """The same; computed once for each cut."""
        cut = cut_by(self.layout, parse_bytes(fusion))
        if cut not in self.known:
            self.known[cut] = self.predicted_s(fusion)
        return self.known[cut]

    @cached_property
    def best_s(self):
        """The least of a grid that is finer than the one of the searches."""
        return min(map(self.seconds, map(size_text, self.sizes(per_octave=FINER))))

    def search(self, noise=None):
        """A search after its trials; ``noise`` is a function that gives factors."""
        search = Search(self.sizes(), start=USUAL_START)
        while not search.over:
            fusion = search.ask()
            search.tell(fusion, self.seconds(fusion) * (1.0 if noise is None else noise()))
        return search

    def missed(self, search):
        """By how much the choice of a search is slower than the best one."""
        return self.seconds(search.best.fusion) / self.best_s - 1


PROBLEMS = [Problem(model, network) for network in NETWORKS for model in MODELS]
PROBLEMS = PROBLEMS if EVERY else PROBLEMS[::4]

SIZES = [1 << power for power in range(18, 30)]
START = 1 << 24


def searched(seconds_of, *, sizes=SIZES):
    """A search after its trials."""
    search = Search(sizes, start=START)
    while not search.over:
        fusion = search.ask()
        assert fusion == search.ask(), "it asks for the same until it is told"
        search.tell(fusion, seconds_of(parse_bytes(fusion)))
    return search


def bowl(size):
    """Shortest at 4 MB."""
    return 0.3 + 0.02 * abs(math.log2(size) - 22)


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_trials_begin_at_the_start_and_are_different_ones(count):
    sizes = sorted(SIZES, key=lambda size: abs(size - START))[:count]
    search = searched(bowl, sizes=sorted(sizes))
    tried = [trial.fusion for trial in search.trials]
    assert tried[0] == size_text(START)
    assert len(set(tried)) == len(tried) == min(TRIALS, count), "sizes that cut alike are none"
    assert set(tried) <= set(map(size_text, sizes))
    assert search.ask() == search.best.fusion, "when all is over"


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e3])
def test_a_search_is_the_same_again_and_in_any_unit_of_time(scale):
    plain, scaled = searched(bowl), searched(lambda size: scale * bowl(size))
    assert [trial.fusion for trial in plain.trials] == [trial.fusion for trial in scaled.trials]


def test_equal_times_are_no_problem():
    assert searched(lambda size: 0.5).best.fusion == size_text(START)


@given(
    layers=st.lists(st.integers(1, 1 << 20), min_size=1, max_size=12),
    low=st.integers(1 << 8, 1 << 20),
    octaves=st.integers(1, 8),
    ranks=st.integers(1, 4),
)
def test_no_two_sizes_cut_alike_and_none_is_left_out(layers, low, octaves, ranks):
    layout = Layout.of([[(number, (count,))] for number, count in enumerate(layers)], itemsize=4, ranks=ranks)
    high = low << octaves
    sizes = distinct_sizes(layout, low, high)
    cuts = [cut_by(layout, size) for size in sizes]
    assert len(set(cuts)) == len(cuts)
    assert sizes == sorted(sizes)
    assert first_size(low, high) in sizes
    assert low <= sizes[0] <= sizes[-1] <= high
    assert {cut_by(layout, size) for size in (low, high)} <= set(cuts)


@given(nbytes=st.integers(1, 1 << 34))
def test_a_size_is_typed_as_it_was(nbytes):
    assert parse_bytes(size_text(nbytes)) == nbytes
    assert abs(readable(nbytes) / nbytes - 1) < 0.006
    assert len(size_text(readable(nbytes))) <= len("1023MB")


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("problem", [*PROBLEMS, Problem("resnet50", "10gbit,50us", "wfbp")], ids=str)
def test_ten_trials_end_within_three_percent_of_the_best(problem, noise):
    rng = np.random.default_rng(5)
    assert problem.missed(problem.search(noise=lambda: rng.normal(1, noise))) < 0.03
