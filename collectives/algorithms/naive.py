"""Naive algorithms: rank 0 collects everything, does all the work and hands out the result.

            rank 1 --+                       +--> rank 1
            rank 2 --+--> rank 0 (combines) -+--> rank 2
            rank 3 --+                       +--> rank 3

Tests' reference; they sum in rank order. Rank 0's one link carries (P-1) n bytes of an all_reduce each way; a ring
moves 2 (P-1)/P n per link. In an all_to_all rank 0 lacks room, so in step k rank k swaps chunks with all ranks after
it.
"""

from collections.abc import Callable

from dear_mpi.collectives.algorithms.pairwise import swap
from dear_mpi.collectives.program.program import Program, Receive, Send, Step

ROOT = 0


def reduce_scatter(rank: int, size: int) -> Program:
    return Program("reduce_scatter", rank, size, collect(rank, size, whole, combine=True) + hand_out(rank, size, own))


def all_gather(rank: int, size: int) -> Program:
    return Program("all_gather", rank, size, collect(rank, size, own, combine=False) + hand_out(rank, size, whole))


def all_reduce(rank: int, size: int) -> Program:
    return Program("all_reduce", rank, size, collect(rank, size, whole, combine=True) + hand_out(rank, size, whole))


def broadcast(rank: int, size: int) -> Program:
    return Program("broadcast", rank, size, hand_out(rank, size, whole))


def reduce(rank: int, size: int) -> Program:
    return Program("reduce", rank, size, collect(rank, size, whole, combine=True))


def all_to_all(rank: int, size: int) -> Program:
    before = [swap(peer) for peer in range(rank)]
    after = [swap(*range(rank + 1, size))] if rank < size - 1 else []
    idle = [Step()] * (size - 2 - rank)
    return Program("all_to_all", rank, size, (*before, *after, *idle))


Part = Callable[[int, int], range]


def whole(peer: int, size: int) -> range:
    return range(size)


def own(peer: int, size: int) -> range:
    return range(peer, peer + 1)


def collect(rank: int, size: int, part: Part, *, combine: bool) -> tuple[Step, ...]:
    others = range(1, size)
    if rank == ROOT:
        return tuple(Step(receives=(Receive(peer, part(peer, size), combine),)) for peer in others)
    return tuple(Step((Send(ROOT, part(rank, size)),)) if peer == rank else Step() for peer in others)


def hand_out(rank: int, size: int, part: Part) -> tuple[Step, ...]:
    others = range(1, size)
    if rank == ROOT:
        return tuple(Step((Send(peer, part(peer, size)),)) for peer in others)
    return tuple(Step(receives=(Receive(ROOT, part(rank, size)),)) if peer == rank else Step() for peer in others)
