"""Replay programs in which no two messages meet at a port: step by step, all ranks and all sizes of the buffer at once.

    step 0    0 -> 1    1 -> 2    2 -> 3    3 -> 0        every rank sends at most one message in a step, and at most
    step 1    0 -> 2    1 -> 3    2 -> 0    3 -> 1        one comes to it; no two ranks use the same port of a host

Rings and exchanges are like that, crowds are not. A rank is in one step at a time, so its ports are never shared. What
a step takes then follows from the times at which the two ends of each message enter it, and nothing has to be put into
the order of time, as ``cost`` and ``columns.py`` do. Each number goes through the same operations as there.

Time: some 15 numpy calls for each step, on arrays of one row for each rank and one column for each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import NamedTuple

import numpy as np

from dear_mpi.collectives.program.network import Network, Side
from dear_mpi.collectives.program.program import Receive, Send, Step
from dear_mpi.kernels.array import Array
from dear_mpi.simulate.prices.stand_ins import StandIns


class MessageKind(NamedTuple):
    """What messages have in common that take equally long: chunks, as seen from a shard, and the link."""

    chunks: range
    distance: int  # see ``Network``


class Transfer(NamedTuple):
    """A message of a step. Its ends are rows; its kind is a number."""

    sender: int
    receiver: int
    kind: int
    combine: bool


@dataclass(frozen=True)
class Round:
    """All messages of a step, as arrays; ``combine`` is a column.

    Attributes:
        times: how many such steps follow each other.
    """

    senders: Array | slice
    receivers: Array | slice
    kinds: Array
    combine: Array
    times: int

    @classmethod
    def of(cls, messages: Sequence[Transfer], times: int, rows: int) -> Round:
        senders, receivers, kinds, combine = np.array(messages, int).reshape(-1, len(Transfer._fields)).T
        return cls(slice_of(senders, rows), slice_of(receivers, rows), kinds, combine[:, None], times)


def slice_of(numbers: Array, rows: int) -> Array | slice:
    """The same rows; as a slice if they are all, so that nothing is copied."""
    return slice(None) if np.array_equal(numbers, np.arange(rows)) else numbers


@dataclass(frozen=True)
class Lockstep:
    """Programs as rounds, and all kinds of messages in them; see ``Replay``."""

    ranks: StandIns
    kinds: tuple[MessageKind, ...]
    rounds: tuple[Round, ...]

    def seconds(self, network: Network, counts: Array, itemsize: int) -> Array:
        links = [network.link(kind.distance) for kind in self.kinds]
        moved = [self.ranks.nbytes(counts, itemsize, kind.chunks) for kind in self.kinds]
        nbytes = np.array(moved).reshape(-1, len(counts))
        alpha_s, beta_s, o_s = np.array([[link.alpha, link.beta, link.o] for link in links]).reshape(-1, 3).T[..., None]
        move_s, sum_s = nbytes * beta_s, nbytes * network.gamma
        done_s = np.zeros((len(self.ranks.programs), len(counts)))
        for each in self.rounds:
            senders, receivers, combined_s = each.senders, each.receivers, each.combine * sum_s[each.kinds]
            alpha, move, o = alpha_s[each.kinds], move_s[each.kinds], o_s[each.kinds]
            for _ in range(each.times):
                handed_s = done_s.copy()
                handed_s[senders] += o
                over_s = np.maximum(handed_s[senders], done_s[receivers]) + alpha + move
                taken_s = np.maximum(handed_s[receivers], over_s) + o + combined_s
                done_s[senders] = over_s  # never before what was done: it began no earlier
                done_s[receivers] = np.maximum(done_s[receivers], taken_s)
        latest_s: Array = done_s.max(axis=0)
        return latest_s


def find_lockstep(ranks: StandIns, network: Network) -> Lockstep | None:
    """These programs as rounds; None if two messages could meet at a port."""
    kinds = dict[MessageKind, int]()  # and their numbers
    users = dict[Side, tuple[str, int]]()  # the row that uses a side, to send or to receive
    found: list[tuple[Transfer, ...]] = []
    for steps in zip_longest(*(program.steps for program in ranks.programs), fillvalue=Step()):
        met = meetings(steps, ranks.size)
        if met is None:
            return None
        transfers = []
        for (sender, send), (receiver, receive) in met:
            ways = {
                ("send", sender): network.way_out(sender, send.peer),
                ("receive", receiver): network.way_in(receiver, receive.peer),
            }
            if any(users.setdefault(side, user) != user for user, way in ways.items() for side in way):
                return None
            first = send.chunks.start % ranks.programs[0].parts
            kind = MessageKind(range(first, first + len(send.chunks)), network.distance(sender, send.peer))
            transfers.append(Transfer(sender, receiver, kinds.setdefault(kind, len(kinds)), receive.combine))
        found.append(tuple(transfers))
    rounds = (Round.of(messages, len([*same]), len(ranks.programs)) for messages, same in groupby(found))
    return Lockstep(ranks, tuple(kinds), tuple(rounds))


def meetings(steps: Sequence[Step], size: int) -> list[tuple[tuple[int, Send], tuple[int, Receive]]] | None:
    """Each send of a step of all rows with its receive, and their rows; None if a row has several of either, or one
    meets nothing."""
    if any(len(step.sends) > 1 or len(step.receives) > 1 for step in steps):
        return None
    rows = range(len(steps))
    # By receiver, and how many ranks after it the sender is, around all ranks.
    sends = {
        (send.peer % len(steps), (row - send.peer) % size): (row, send) for row in rows for send in steps[row].sends
    }
    receives = {(row, (each.peer - row) % size): (row, each) for row in rows for each in steps[row].receives}
    return [(sends[way], receives[way]) for way in sends] if sends.keys() == receives.keys() else None
