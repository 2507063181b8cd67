"""A user's statistic looks at all gradients before any of them is used."""

from itertools import product

import numpy as np
import pytest

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.training import SGD, Adam, Lamb, Muon, Session, Statistic
from dear_mpi.training.schedules import SCHEDULES
from tests.training.route_checks import OnHosts
from tests.training.test_sharded import layers
from tests.training.test_wires import float32_layers
from tests.training_checks import agreed, installed, steps


class NonZero(Statistic):
    """Skips an iteration where fewer elements than ``least`` are not zero, else multiplies gradients by ``by``."""

    count = 2

    def __init__(self, least=0, by=1.0):
        self.least, self.by, self.seen = least, by, []

    def sums(self, shard):
        return np.array([np.count_nonzero(shard), 0.0])

    def factor(self, sums):
        self.seen.append(sums.tolist())
        return None if sums[0] < self.least else self.by


class Largest(Statistic):
    """Clips by the sum of magnitudes, which tells sums before codes from those after them."""

    count = 1

    def sums(self, shard):
        return np.array([np.round(np.abs(shard.astype(np.float64)).sum() * 2**20)])  # exact in any order

    def factor(self, sums):
        return min(1.0, 2**20 / sums[0])


def trained(transport, statistic, schedule="dear", *, make=layers, iterations=3, **options):
    options = {"optimizer": SGD(0.1), "algorithm": "ordered", "fusion": "cut:128B"} | options
    options |= {"schedule": schedule, "statistic": statistic}
    with Session(make(), SoftmaxCrossEntropy(), transport, **options) as session:
        before = session.parameters_sha256()
        return before, steps(session, iterations), session.group.fabric.updates


@pytest.mark.parametrize(
    ("schedule", "options"),
    [*product(SCHEDULES, ({"update": "full"}, {"update": "sharded"})), ("dear", {"clip": 1e9})],
    ids=str,
)
def test_all_ranks_use_what_it_says(schedule, options):
    """Gradients times one half are those of half the learning rate."""
    found = run_loopback(3, lambda each: trained(each, NonZero(by=0.5), schedule, **options))
    half = run_loopback(3, lambda each: trained(each, None, "sequential", optimizer=SGD(0.05)))
    assert {after for _, after, _ in found} == {after for _, after, _ in half}


SYNCHRONOUS = [name for name, schedule in SCHEDULES.items() if schedule.own_route() is None]
CODED = installed(
    ("int8", {"clip": 0.05}),
    ("int4:error=no", {"clip": 0.05, "loss_scale": "dynamic"}),
    ("fp8", {"statistic": Largest()}),
    ("topk:20%", {"clip": 0.05, "accumulate": 2, "weights": (3.0, 1.0, 1.0, 1.0)}),
    ("int8", {"clip": 0.05, "optimizer": Lamb(0.01), "fusion": "none"}),
    ("noise:1%", {"clip": 0.05, "optimizer": Muon(0.01), "fusion": "none"}),
    ("int4:between", {"clip": 0.05, "statistic": Largest(), "optimizer": Adam(0.01)}),
)


@pytest.mark.parametrize("update", ["full", "sharded"])
@pytest.mark.parametrize("number", range(len(CODED)), ids=[wire for wire, _ in CODED])
def test_all_schedules_take_it_of_the_same_sums(number, update):
    """Where an all-reduce had coded its sums already, the norm was another: schedules came to other bits."""
    ranks, (wire, options) = 3 + number % 2, CODED[number]
    first, *others = SYNCHRONOUS
    options = {"make": float32_layers, "statistic": None, "update": update, "wire": wire, "iterations": 5} | options
    if "weights" in options:
        options["weights"] = options["weights"][:ranks]
    hosts = [0, 0, 1, 1][:ranks] if "between" in wire else [0] * ranks

    def run(schedule):
        return set(run_loopback(ranks, lambda each: trained(OnHosts(each, hosts), schedule=schedule, **options)[1]))

    third = others[(number + (update == "sharded")) % 3 :: 3]
    found = {schedule: run(schedule) for schedule in (first, *third)}
    assert len(set().union(*found.values())) == 1, found


@pytest.mark.parametrize("wire", installed("randomk:20%", "blocks:20%", "powersgd:2", "acp:2", "sketch:10"))
def test_it_is_refused_where_the_sums_are_not_there_before_the_way_back(wire):
    said = agreed(lambda each: trained(each, NonZero(), wire=wire, make=float32_layers), 2)
    assert "need the sums of gradients before the update" in said


def test_it_sees_each_element_once_and_zeros_of_padding_add_nothing():
    def counts(transport):
        statistic = NonZero()
        trained(transport, statistic)
        return statistic.seen

    one, *many = (run_loopback(ranks, counts)[0] for ranks in (1, 2, 5))
    parameters = 6 * 6 + 6 + 6 * 4 + 4  # the tied weight is one; a bias is frozen
    for seen in (one, *many):
        assert len(seen) == 3
        assert all(0 < found <= parameters and rest == 0 for found, rest in seen)


@pytest.mark.parametrize("schedule", ["wfbp", "dear", "dear-eager", "fsdp"])
@pytest.mark.parametrize("update", ["full", "sharded"])
def test_it_may_skip_iterations(schedule, update):
    found = run_loopback(3, lambda each: trained(each, NonZero(least=1e9), schedule, update=update))
    for before, after, updates in found:
        assert before == after
        assert updates == 0


def test_what_is_none_is_refused():
    said = agreed(lambda each: trained(each, "norm"), 2)
    assert said == "session: statistic must be a Statistic of dear_mpi.training, not 'norm'"
