"""The model that ``cost`` describes, on programs that are small enough for times to be worked out by hand."""

from collections import namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.collectives import programs
from dear_mpi.collectives.program.cost import Network, connected, cost, fair_rates
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import Program, Receive, Send, Step

CHUNK = 100  # bytes
SLOW = Network(beta=1 / CHUNK)  # a chunk takes a second


def seconds(messages, network=SLOW, *, combine=False, **arrivals):
    """The time of steps of (from, to, number of chunks), written as one list of messages for each step."""
    size = 1 + max(max(source, target) for step in messages for source, target, _ in step)

    def step(rank, row):
        sends = tuple(Send(target, range(length)) for source, target, length in row if source == rank)
        receives = tuple(Receive(source, range(length), combine) for source, target, length in row if target == rank)
        return Step(sends, receives)

    written = [Program("all_reduce", rank, size, tuple(step(rank, row) for row in messages)) for rank in range(size)]
    return cost(written, CHUNK * size, 1, network, **arrivals).time_s


def test_a_message_waits_until_its_receiver_is_in_that_step():
    """Rank 2 could send at once; its message would take half of the port of rank 1 from the one of rank 0."""
    assert seconds([[(0, 1, 2)], [(2, 1, 2)], [(1, 3, 1)]]) == pytest.approx(2 + 2 + 1)


def test_a_rank_begins_when_it_arrives():
    """Only then rank 0 can send to it. What the other ranks do goes on meanwhile, and shares the port from then on."""
    assert seconds([[(0, 1, 2)]], arrivals_s=[0.0, 3.0]) == pytest.approx(3 + 2)
    assert seconds([[(0, 1, 2), (2, 3, 4)]], arrivals_s=[0.0, 3.0, 0.0, 0.0]) == pytest.approx(3 + 2)
    assert seconds([[(0, 1, 2), (0, 2, 3)]], arrivals_s=[0.0, 1.0, 0.0]) == pytest.approx(1 + 2 + 2)
    assert seconds([[(0, 1, 2)]], arrivals_s=[3.0, 3.0]) == pytest.approx(3 + 2)


@pytest.mark.parametrize(("late", "by", "after"), [(0, 9, 6), (1, 9, 6), (2, 9, 5), (3, 9, 4), (3, 1, 5), (1, 1, 6)])
def test_the_naive_root_has_less_left_when_its_last_rank_is_late(late, by, after):
    """On 4 ranks it takes 3 buffers in and hands 3 out, in the order of ranks; a buffer takes a second."""
    arrivals_s = [by * (rank == late) for rank in range(4)]
    found = cost(programs("naive", "all_reduce", 4), 400, 1, Network(beta=1 / 400), arrivals_s=arrivals_s)
    assert found.time_s - by == pytest.approx(after)


@pytest.mark.parametrize("late", range(4))
def test_in_a_ring_all_is_left_when_a_rank_is_late(late):
    ring = programs("ring", "all_reduce", 4)
    balanced_s, arrivals_s = cost(ring, 400, 1, SLOW).time_s, [9.0 * (rank == late) for rank in range(4)]
    assert cost(ring, 400, 1, SLOW, arrivals_s=arrivals_s).time_s - 9 == pytest.approx(balanced_s)


def test_latency_counts_from_where_both_ends_are_in_their_step():
    network = Network(alpha=10.0, beta=1 / CHUNK)
    assert seconds([[(0, 1, 2)], [(2, 1, 2)]], network) == pytest.approx(2 * (10 + 2))


def test_a_sender_waits_until_its_message_is_there():
    network = Network(alpha=10.0, beta=1 / CHUNK)
    assert seconds([[(0, 1, 2)], [(0, 2, 2)]], network) == pytest.approx(2 * (10 + 2))


def test_messages_share_a_port_evenly():
    """From rank 0 the short one is there after 2 s, when the long one has 2 s left; then rank 1 sends it on."""
    assert seconds([[(0, 1, 1), (0, 2, 3)], [(1, 3, 3)]]) == pytest.approx(2 + 3)
    assert seconds([[(0, 1, 1), (0, 2, 3)], [(2, 3, 1)]]) == pytest.approx(4 + 1)


def test_what_a_message_cannot_use_the_others_do():
    """Three messages share the way into rank 2: 3 chunks take 9 s. From rank 0 to 1 two thirds are left: 4 take 6 s."""
    crowd = [(0, 2, 3), (3, 2, 3), (4, 2, 3)]
    assert seconds([[(0, 1, 4), *crowd], [(1, 5, 6)]]) == pytest.approx(6 + 6)
    assert seconds([[(0, 1, 4), *crowd], [(3, 4, 5)]]) == pytest.approx(9 + 5)


def test_transfers_of_a_step_between_two_ranks_are_one_message():
    """With one latency, and nothing is added before all is there."""
    network = Network(alpha=3.0, beta=1 / CHUNK, gamma=0.5 / CHUNK, o=0.25)
    assert seconds([[(0, 1, 2), (0, 1, 2)]], network, combine=True) == pytest.approx(0.25 + 3 + 4 + 0.25 + 2)
    twice = [Step((Send(1, range(1)), Send(1, range(1, 2)))), Step((), (Receive(0, range(1)), Receive(0, range(1, 2))))]
    found = cost([Program("broadcast", rank, 2, (step,)) for rank, step in enumerate(twice)], 2 * CHUNK, 1, network)
    assert (found.messages, found.nbytes) == ((1, 0), (200, 0))


def test_a_sum_of_a_rank_alone_costs_its_bytes_only():
    """Neither latency nor transfer; the rank's next step, and no other rank, waits for it."""
    network = Network(alpha=3.0, beta=1 / CHUNK, gamma=0.5 / CHUNK)
    copy = Step((Send(0, range(2)),), (Receive(0, range(2, 4)),))
    total = Step((Send(0, range(2, 4)),), (Receive(0, range(2), combine=True),))
    sends, receives = Step((Send(1, range(1)),)), Step((), (Receive(0, range(1)),))
    steps = [(copy, total, sends), (Step(), Step(), receives)]
    found = cost([Program("all_reduce", r, 2, each, scratch=1) for r, each in enumerate(steps)], 2 * CHUNK, 1, network)
    assert found.time_s == pytest.approx(2 * 0.5 + 3 + 1)
    assert (found.messages, found.nbytes, found.link_nbytes) == ((1, 0), (CHUNK, 0), {(0, 1): CHUNK})


def test_hosts_share_their_ports_evenly_too():
    network = Network(beta=1.0, hosts=(0, 0, 1, 1), between=Network(beta=1 / CHUNK))
    assert seconds([[(0, 2, 1), (1, 3, 3)]], network) == pytest.approx(4)


def test_three_ranks_fold_into_two():
    """Rank 1 gives two thirds of n to rank 0, which swaps two thirds for one with rank 2, and gives back one third."""
    network = Network(alpha=0.5, beta=1 / CHUNK)
    written = programs("rabenseifner", "reduce_scatter", 3)
    assert cost(written, 3 * CHUNK, 1, network).time_s == pytest.approx(3 * 0.5 + 2 + 2 + 1)


@pytest.mark.parametrize("written", [(Step((), (Receive(1, range(1)),)), Step()), (Step((Send(1, range(1)),)), Step())])
def test_a_message_that_one_end_alone_knows_blocks(written):
    with pytest.raises(ProgramError, match="the programs deadlock"):
        cost([Program("all_gather", rank, 2, (step,)) for rank, step in enumerate(written)], 2, 1, Network())


Flow = namedtuple("Flow", "number sides")


@given(ends=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20))
def test_rates_are_fair(ends):
    """Each flow has a side that is full, in which nobody has more: nothing could be gained from those with no more."""
    flows = [Flow(number, (("out", a), ("in", b))) for number, (a, b) in enumerate(ends)]
    users = {side: [flow for flow in flows if side in flow.sides] for flow in flows for side in flow.sides}
    rates = fair_rates(users)
    used = {side: sum(rates[flow] for flow in there) for side, there in users.items()}
    assert max(used.values()) <= 1 + 1e-9
    for flow in flows:
        narrow = [side for side in flow.sides if used[side] > 1 - 1e-9]
        assert any(max(rates[other] for other in users[side]) <= rates[flow] + 1e-9 for side in narrow)


def test_flows_are_connected_through_others():
    """a to x, b to x and b to y are one group, c to z another."""
    flows = [Flow(number, (("out", ends[0]), ("in", ends[1]))) for number, ends in enumerate(["ax", "bx", "by", "cz"])]
    users = {side: [flow for flow in flows if side in flow.sides] for flow in flows for side in flow.sides}
    assert {name for _, name in connected(("out", "a"), users)} == {"a", "b", "x", "y"}
    assert {name for _, name in connected(("in", "z"), users)} == {"c", "z"}
