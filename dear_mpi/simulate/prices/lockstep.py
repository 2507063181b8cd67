"""Replay programs for many buffer sizes at once, with a few ranks that represent all identical ones:

        ring, 4096 ranks                        rank 0 stands for all
        torus of 64 x 64                        ranks 0 to 63, the first row
        hierarchical, 64 hosts of 16 ranks      ranks 0 to 15, the first host
        binomial tree                           no rank stands for another: all ranks

Ranks are identical if the program of rank r + q is the program of rank r with q added to all peers: then the first q
ranks suffice. Their chunks may differ, if equally long. If ranks of a host share ports, the first q ranks must be whole
hosts, and all hosts alike. Up to 64 ranks all are examined; beyond, only a few, including the first and the last.

``Columns`` replays like ``cost``, with a column of sizes in place of each number. The order of events depends on the
buffer size. It uses the order of one size, the leader, for all sizes, and determines for which sizes that order is
right:

    size 1 KB     a is over, then b and c at once        the leader
    size 2 KB     a is over, then b and c at once        the same order: its times are right
    size 1 MB     b is over, then a, then c              another one: replayed again, with another leader

If hardly two sizes have the same order, each is replayed separately. Order matters only among flows that share ports,
even indirectly, and at the processor of a rank. All operations are those in ``cost``, so times differ only by rounding.

Cost: some 50 numpy calls per message, on one number per size. For one size ``cost`` is two to five times as fast; for
64 sizes it takes some ten times as long.

``Lockstep`` goes step by step, all ranks and all sizes at once, if no two messages meet at a port:

    step 0    0 -> 1    1 -> 2    2 -> 3    3 -> 0        every rank sends at most one message in a step, and at most
    step 1    0 -> 2    1 -> 3    2 -> 0    3 -> 1        one comes to it; no two ranks use the same port of a host

Rings and exchanges are like that, crowds are not. A rank is in one step at a time, so its ports are never shared. The
times at which both ends of a message enter a step determine its duration: no events need sorting, and the operations
remain the ones in ``cost``.

Cost: some 15 numpy calls per step, on one row per rank and one column per size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby, zip_longest
from typing import NamedTuple

import numpy as np

from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.network import TIE, Network, Side
from dear_mpi.collectives.program.program import Algorithm, Program, Receive, Send, Step, write_program
from dear_mpi.collectives.program.simulation import Number, Simulation
from dear_mpi.kernels.array import Array

THOROUGH = 64  # up to this many ranks, all are examined
MOST_TRANSFERS = 10_000_000  # steps and messages together: some minutes, and some GB of memory

Hosts = Sequence[int] | None
Seen = tuple[int, ...]


@dataclass(frozen=True)
class StandIns:
    """Hold the programs of the first ranks, which represent all ``size`` ranks."""

    programs: tuple[Program, ...]
    size: int

    def nbytes(self, counts: Array, itemsize: int, chunks: range) -> Array:
        """Return the bytes of these chunks of any rank's shard, or of this shard and the next ones.

        Args:
            counts: elements of the buffers, int64, shape (sizes,), each divisible by the number of ranks.
            itemsize: bytes of an element.

        Returns:
            int64, shape (sizes,).

        >>> program = Program("all_gather", 0, 2, (), parts=4)
        >>> StandIns((program,), size=2).nbytes(np.array([20, 40]), 1, range(3, 5))
        array([ 5, 10])
        """
        shares, parts = counts // self.size, self.programs[0].parts
        small, larger = divmod(shares, parts)

        def border(chunk: int) -> Array:
            """Return the elements before a chunk: in whole shards, and in some parts of the next shard."""
            shards, part = divmod(chunk, parts)
            before: Array = shards * shares + part * small + np.minimum(part, larger)
            return before

        first = chunks.start % parts
        return itemsize * (border(first + len(chunks)) - border(first))


def find_stand_ins(
    algorithm: Algorithm,
    size: int,
    hosts: Hosts = None,
    pieces: int = 1,
    *,
    rates: Rates | None = None,
    even: bool = True,
    thorough: int = THOROUGH,
) -> StandIns:
    """Return the fewest ranks that can represent all.

    Args:
        hosts: the host number of each rank, if ranks of a host share ports; otherwise None.
        pieces, rates: for algorithms that need them.
        even: whether the network looks the same from each host; if not, no rank represents another.
        thorough: up to this many ranks, all are examined.

    Raises:
        ValueError: no few ranks represent all, and there is too much to replay.
    """
    program = cache(lambda rank: write_program(algorithm, rank, size, hosts=hosts, rates=rates, pieces=pieces))
    seen = cache(lambda rank: outline(program(rank)))
    divisors = [few for few in range(1, size // 2 + 1) if even and size % few == 0 and whole_hosts(hosts, few)]
    pairs = every_pair if size <= thorough else samples
    alike = (few for few in divisors if all(seen(rank) == seen(other) for rank, other in pairs(few, size)))
    count = next(alike, size)
    transfers = 0
    for rank in range(count):
        transfers += sum(1 + len(step.sends) for step in program(rank).steps)
        if transfers > MOST_TRANSFERS:
            raise ValueError(
                f"the first {rank + 1} of {count} ranks have more than {MOST_TRANSFERS} steps and messages, which is"
                " too much to replay: take fewer ranks, or an algorithm whose ranks do the same, such as ring"
            )
    return StandIns(tuple(map(program, range(count))), size)


def every_pair(few: int, size: int) -> list[tuple[int, int]]:
    """Return pairs of a rank and one that it would represent."""
    return [(rank % few, rank) for rank in range(few, size)]


def samples(few: int, size: int) -> list[tuple[int, int]]:
    """Return some of these pairs: the first and the last of few, with their neighbours, half-way, and far."""
    shifts = {few, size // few // 2 * few, size - few}
    return [(rank, rank + shift) for shift in sorted(shifts) for rank in sorted({0, few // 2, few - 1})]


def whole_hosts(hosts: Hosts, few: int) -> bool:
    """Return whether a shift by ``few`` ranks maps hosts to hosts, and the first few ranks fill theirs."""
    if hosts is None:
        return True
    number = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    numbers = [number[host] for host in hosts]
    step = len(set(numbers[:few]))
    return all(later == earlier + step for earlier, later in zip(numbers, numbers[few:], strict=False))


def outline(program: Program) -> list[tuple[list[Seen], list[Seen]]]:
    """Return a program relative to its rank: the distance of each peer, the first part, and the number of chunks."""

    def seen(transfer: Send | Receive) -> Seen:
        away, chunks = (transfer.peer - program.rank) % program.size, transfer.chunks
        return away, chunks.start % program.parts, len(chunks)

    return [
        ([seen(send) for send in step.sends], [(*seen(receive), receive.combine) for receive in step.receives])
        for step in program.steps
    ]


FEW = 3  # a replay of many sizes takes as long as some three replays of one size


@dataclass(frozen=True)
class Columns:
    """Replay any programs; see ``Replay``."""

    ranks: StandIns

    def seconds(self, network: Network, counts: Array, itemsize: int) -> Array:
        times, todo = np.zeros(len(counts)), np.arange(len(counts))
        served = len(counts)
        while todo.size >= FEW and served >= FEW:
            run = ManySizes(self.ranks, network, counts[todo], itemsize)
            run.to_the_end()
            run.same[run.leader] = True  # by definition, regardless of rounding
            times[todo[run.same]] = np.max([rank.entered_s for rank in run.ranks], axis=0)[run.same]
            served, todo = run.same.sum(), todo[~run.same]
        for place in todo:
            one = OneSize(self.ranks, network, counts[place : place + 1], itemsize)
            one.to_the_end()
            times[place] = max(rank.entered_s for rank in one.ranks)
        return times


class OneSize(Simulation):
    """Replay as ``cost``, with ranks that may represent others."""

    def __init__(self, ranks: StandIns, network: Network, counts: Array, itemsize: int) -> None:
        super().__init__(ranks.programs, (), network)
        self.size, self.bytes_of = ranks.size, cache(partial(ranks.nbytes, counts, itemsize))

    def seen_by(self, rank: int, peer: int) -> tuple[int, int]:
        """Return the representative of a pair of ranks: the identical pair whose first rank is a representative."""
        stand_in = rank % len(self.ranks)
        return stand_in, (peer - rank + stand_in) % self.size

    def nbytes(self, chunks: range) -> Number:
        return int(self.bytes_of(chunks)[0])


class ManySizes(OneSize):
    """Replay once, with one number for each size in place of each number of ``cost``.

    Attributes:
        same: for each size, whether its order of events is the leader's.
    """

    latest: Callable[[Number, Number], Number] = staticmethod(np.maximum)

    def __init__(self, ranks: StandIns, network: Network, counts: Array, itemsize: int) -> None:
        super().__init__(ranks, network, counts, itemsize)
        self.leader, self.same = len(counts) // 2, np.ones(len(counts), bool)
        self.start_s = np.zeros(len(counts))
        self.before_s: dict[object, Array] = defaultdict(lambda: self.start_s)

    def key(self, time_s: Array) -> float:
        return float(time_s[self.leader])

    def moment(self, times_s: Sequence[Array], places: Iterable[object]) -> Array:
        """Return the moment; a size stays ``same`` if its times are equal, and not before the last at these places."""
        now_s: Array = times_s[0]
        if len(times_s) > 1:
            now_s = np.maximum.reduce(times_s)
            self.same &= np.minimum.reduce(times_s) >= now_s * (1 - TIE)
        for place in places:
            self.same &= now_s >= self.before_s[place] * (1 - TIE)
            self.before_s[place] = now_s
        return now_s

    def nbytes(self, chunks: range) -> Array:
        return self.bytes_of(chunks)


class MessageKind(NamedTuple):
    """Group messages of equal duration: chunks relative to a shard, and the link."""

    chunks: range
    distance: int  # see ``Network``


class Transfer(NamedTuple):
    """Describe a message of a step. Its ends are rows; its kind is a number."""

    sender: int
    receiver: int
    kind: int
    combine: bool


@dataclass(frozen=True)
class Round:
    """Hold all messages of a step, as arrays; ``combine`` is a column.

    Attributes:
        times: number of identical consecutive steps.
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
    """Return the rows as an index; a slice if they are all rows, which avoids a copy."""
    return slice(None) if np.array_equal(numbers, np.arange(rows)) else numbers


@dataclass(frozen=True)
class Lockstep:
    """Hold programs as rounds, and all kinds of messages in them; see ``Replay``."""

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
                done_s[senders] = over_s  # never before the previous operation's end: it began no earlier
                done_s[receivers] = np.maximum(done_s[receivers], taken_s)
        latest_s: Array = done_s.max(axis=0)
        return latest_s


def find_lockstep(ranks: StandIns, network: Network) -> Lockstep | None:
    """Convert these programs to rounds; None if two messages could meet at a port."""
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
    """Match each send of a step of all rows with its receive, and return their rows.

    Returns None if a row has several sends or receives, or one has no match.
    """
    if any(len(step.sends) > 1 or len(step.receives) > 1 for step in steps):
        return None
    rows = range(len(steps))
    # By receiver; value: distance from receiver to sender, around all ranks.
    sends = {
        (send.peer % len(steps), (row - send.peer) % size): (row, send) for row in rows for send in steps[row].sends
    }
    receives = {(row, (each.peer - row) % size): (row, each) for row in rows for each in steps[row].receives}
    return [(sends[way], receives[way]) for way in sends] if sends.keys() == receives.keys() else None
