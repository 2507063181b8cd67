"""Two orders of dimensions: proved for any hosts, rates and sizes; by the cost model never slower than one order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear_mpi.collectives import MismatchError, all_gather, all_reduce, programs, reduce_scatter, verify
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.see.explain import PROOFS
from docs.benchmarks.dimensions import LARGE, RATIOS, SEGMENT, gain, hosts_of, written

MANY = LARGE // SEGMENT
COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")
SHAPES = [(2, 2), (3, 2), (2, 3), (4, 4), (2, 8), (8, 2), (5, 3)]  # ranks of a host


@settings(max_examples=100)
@given(
    hosts=st.lists(st.integers(0, 4), min_size=1, max_size=20),
    ratio=st.floats(0.01, 100),
    pieces=st.integers(1, 400),
    collective=st.sampled_from(COLLECTIVES),
)
def test_proved_for_any_ranks_on_any_hosts(hosts, ratio, pieces, collective):
    verify(programs("themis", collective, len(hosts), hosts=hosts, rates=Rates(1.0, ratio), pieces=pieces))


@settings(max_examples=60)
@given(
    ranks=st.integers(1, 6),
    across=st.integers(1, 6),
    ratio=st.floats(0.02, 4),
    collective=st.sampled_from(COLLECTIVES),
    dealt=st.booleans(),
)
def test_proved_where_hosts_are_alike(ranks, across, ratio, collective, dealt):
    """In both ways in which launchers put ranks on hosts: one host after the other, and in turns."""
    hosts = [rank % across for rank in range(ranks * across)] if dealt else hosts_of(ranks, across)
    verify(programs("themis", collective, len(hosts), hosts=hosts, rates=Rates(ratio, 1.0), pieces=MANY))


@pytest.mark.parametrize(("ranks", "across", "ratio"), [(2, 2, 1), (3, 2, 1), (2, 2, 0.1)])
def test_its_instructions_are_proved(ranks, across, ratio):
    for collective in COLLECTIVES:
        PROOFS["messages"](written("themis", ranks, across, Rates(ratio, 1.0), collective=collective))


@pytest.mark.parametrize(("ranks", "across"), SHAPES)
def test_never_slower_than_one_order_at_any_ratio_of_rates(ranks, across):
    gains = [gain(ranks, across, ratio) for ratio in RATIOS]
    assert min(gains) >= 1 - 1e-9
    assert max(gains) > 1.9


@pytest.mark.parametrize(("hosts", "rates", "pieces"), [
    ([0, 0, 1, 1], None, MANY),  # no rates
    ([0, 0, 1, 1], Rates(1.0, 1.0), 3),  # parts would be too small
    ([0, 0, 0, 1, 1], Rates(1.0, 1.0), MANY),  # uneven hosts
    ([0, 0, 0, 0], Rates(1.0, 1.0), MANY),
    ([0, 1, 2, 3], Rates(1.0, 1.0), MANY),
    ([0, 0, 1, 1], Rates(9.0, 1.0), MANY),  # the wire between hosts is what one waits for
])  # fmt: skip
def test_all_parts_keep_the_usual_order_where_another_one_brings_nothing(hosts, rates, pieces):
    how = {"hosts": hosts, "rates": rates, "pieces": pieces}
    one, two = (programs(name, "all_reduce", len(hosts), **how) for name in ("hierarchical", "themis"))
    assert one == two


def exact(transport, rates, count):
    """All three collectives against the sums of whole numbers, and the halves against the whole, bit by bit."""
    transport.rates, rank, size = rates, transport.rank, transport.size
    how = {"algorithm": "themis", "segment_bytes": 64}
    data = np.random.default_rng(0).integers(0, 9, (size, count)).astype(np.float32)
    np.testing.assert_array_equal(all_reduce(data[rank].copy(), transport, **how), data.sum(axis=0))
    whole, halves = (np.random.default_rng(rank).standard_normal(count).astype(np.float32) for _ in "12")
    all_reduce(whole, transport, **how)
    reduce_scatter(halves, transport, **how)
    all_gather(halves, transport, **how)
    assert whole.tobytes() == halves.tobytes()
    return whole.tobytes()


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1, 1, 1), (0, 0, 1, 1, 2, 2), (0, 0, 1)])
@pytest.mark.parametrize("rates", [(1.0, 1.0), (1.0, 8.0), (3.0, 2.0)])
@pytest.mark.parametrize("count", [0, 5, 1000, 1001])
def test_runs_are_exact_and_of_the_same_bits_on_all_ranks(hosts, rates, count):
    assert len(set(run_loopback(len(hosts), lambda t: exact(t, rates, count), hosts))) == 1


def test_ranks_that_know_other_rates_are_told():
    def body(transport):
        transport.rates = Rates(1.0, 1.0 + transport.rank)
        all_reduce(np.ones(4), transport, algorithm="themis")

    with pytest.raises(MismatchError, match="rates of the transport"):
        run_loopback(4, body, hosts=[0, 0, 1, 1])
