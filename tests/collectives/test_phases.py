"""What ranks do in each other's memory is proved for many shapes; planted faults are found."""

import pytest

from dear_mpi.collectives import Partition, ProgramError
from dear_mpi.collectives.lowering import check
from dear_mpi.collectives.lowering.phases import BUFFERS, Share, phases

SHAPES = [(0, None), (1, None), (7, None), (16, None), (61, None), (13, [3, 1, 2, 0, 4, 0.5, 2, 1])]


def written(collective, count, size, weights=None, *, mailboxes, block=3, at_once=False):
    partition = Partition.of(count, size, weights and weights[:size])
    shares = [Share(partition, rank, block, at_once) for rank in range(size)]
    return shares[0], [phases(collective, share, mailboxes=mailboxes) for share in shares]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("mailboxes", [False, True])
@pytest.mark.parametrize("collective", BUFFERS)
def test_proved_for_all_shapes(collective, mailboxes, at_once):
    for size in (*range(1, 10), 16):
        for count, weights in SHAPES:
            if weights is None or size <= len(weights):
                share, found = written(
                    collective,
                    count,
                    size,
                    weights,
                    mailboxes=mailboxes,
                    block=[1 + count % 4, 64][size % 2],
                    at_once=at_once,
                )
                check.check_phases(collective, share, found)


@pytest.mark.parametrize("collective", BUFFERS)
@pytest.mark.parametrize("at_once", [False, True])
def test_contributions_are_combined_in_rank_order(collective, at_once):
    """All that an element of a rank's shard is made of comes in the order of the ranks."""
    for mailboxes in (False, True):
        _, found = written(collective, 12, 4, mailboxes=mailboxes, at_once=at_once)
        for moves in (move for rank in found for phase in rank for move in phase if len(move.sources) > 2):
            assert [rank for _, rank in moves.sources] == [0, 1, 2, 3]


def no_barrier(of_rank):
    """The first two phases as one."""
    return [[*of_rank[0], *of_rank[1]], *of_rank[2:]]


def no_barrier_late(of_rank):
    """The fourth and the fifth phase as one."""
    return [*of_rank[:3], [*of_rank[3], *of_rank[4]], *of_rank[5:]]


def nobody_waits_at_the_end(of_rank):
    return of_rank[:-1]


def twice(of_rank):
    return [*of_rank[:-1], of_rank[-1] + [move for move in of_rank[-1] if len(move.sources) > 1]]


# (what is planted, into which collective, with mailboxes, what is found)
FAULTS = [
    *((no_barrier_late, collective, True, "reads undefined data|may be using") for collective in BUFFERS),
    (no_barrier, "all_reduce", True, "reads undefined data in element 0 of mailbox 1"),
    (no_barrier, "all_gather", False, "may be using"),
    (nobody_waits_at_the_end, "all_gather", False, "may be using"),
    (nobody_waits_at_the_end, "all_reduce", False, "may be using"),
    (twice, "reduce_scatter", True, "combines ranks? .* twice"),
    (lambda of_rank: [[], [], []], "all_gather", False, "rank 0: element 3 is still empty; expected rank 1's data"),
]


@pytest.mark.parametrize(("plant", "collective", "mailboxes", "message"), FAULTS)
def test_faults_are_found(plant, collective, mailboxes, message):
    share, found = written(collective, 30 if plant is no_barrier_late else 9, 3, mailboxes=mailboxes)
    with pytest.raises(ProgramError, match=message):
        check.check_phases(collective, share, [plant(of_rank) for of_rank in found])


@pytest.mark.parametrize(("count", "block"), [(9, 9), (30, 3)])
@pytest.mark.parametrize("collective", BUFFERS)
def test_one_set_of_mailboxes_would_not_do(monkeypatch, collective, count, block):
    """A fast rank would overwrite its mailbox while a slow one still reads it, in this run or in the last one."""
    share, found = written(collective, count, 3, mailboxes=True, block=block)
    two_sets = check.SymbolicMemory.place

    def one_set(state, memory, element):
        memory, at = two_sets(state, memory, element)
        return memory, at if memory[0] == "buffer" else at % share.mailbox_room

    monkeypatch.setattr(check.SymbolicMemory, "place", one_set)
    with pytest.raises(ProgramError, match=r"which rank \d may be using"):
        check.check_phases(collective, share, found)
