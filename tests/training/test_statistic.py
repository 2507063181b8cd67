"""A user's statistic looks at all gradients before any of them is used."""

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.training import SGD, Session, Statistic
from dear_mpi.training.schedules import SCHEDULES
from tests.training.test_sharded import batch, layers


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


def trained(transport, statistic, schedule="dear", **options):
    options = {"optimizer": SGD(0.1), "algorithm": "ordered", "fusion": "cut:128B"} | options
    with Session(
        layers(), SoftmaxCrossEntropy(), transport, schedule=schedule, statistic=statistic, **options
    ) as session:
        before = session.parameters_sha256()
        for iteration in range(3):
            session.step(*batch(iteration, transport.rank))
        session.flush()
        return before, session.parameters_sha256(), session.group.fabric.updates


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("update", ["full", "sharded"])
def test_all_ranks_use_what_it_says(schedule, update):
    """Gradients times one half are those of half the learning rate."""
    found = run_loopback(3, lambda each: trained(each, NonZero(by=0.5), schedule, update=update))
    half = run_loopback(3, lambda each: trained(each, None, "sequential", optimizer=SGD(0.05)))
    assert {after for _, after, _ in found} == {after for _, after, _ in half}


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
    for before, after, updates in run_loopback(
        3, lambda each: trained(each, NonZero(least=1e9), schedule, update=update)
    ):
        assert before == after
        assert updates == 0


def test_its_sum_has_its_name():
    def names(transport):
        options = {"optimizer": SGD(0.1), "statistic": NonZero()}
        with Session(layers(), SoftmaxCrossEntropy(), transport, clip=1.0, **options) as session:
            return session.group.fabric.verdict.plan.name

    assert set(run_loopback(2, names)) == {"all_reduce of the norm and NonZero"}


def test_it_goes_with_clip():
    found = run_loopback(2, lambda each: trained(each, NonZero(by=0.5), clip=1e9))
    half = run_loopback(2, lambda each: trained(each, None, optimizer=SGD(0.05)))
    assert {after for _, after, _ in found} == {after for _, after, _ in half}


def test_what_is_none_is_refused():
    def refused(transport):
        with pytest.raises(AgreedError) as error:
            trained(transport, "norm")
        return str(error.value)

    assert set(run_loopback(2, refused)) == {"session: statistic must be a Statistic of dear_mpi.training, not 'norm'"}
