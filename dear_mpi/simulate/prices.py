"""Price a collective on a network, for many buffer sizes at once, and for thousands of ranks.

The first q ranks represent all if rank r + q does what rank r does, with q added to all peers:

        ring, 4096 ranks                        rank 0
        torus of 64 x 64                        ranks 0 to 63, the first row
        hierarchical, 64 hosts of 16 ranks      ranks 0 to 15, the first host
        binomial tree                           all ranks

Their chunks may differ, if equally long. If ranks share ports, the q ranks must be whole hosts. ``Lockstep`` takes all
ranks and sizes at once, if no two messages meet at a port; ``collectives/program/cost.py`` has the same arithmetic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby, zip_longest
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.collectives.algorithms.registry import find_algorithm, runner_of
from dear_mpi.collectives.program.cost import Network, Side, Simulation
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.program import Algorithm, Program, Receive, Send, Step, asks_for, write_program
from dear_mpi.kernels.array import Array
from dear_mpi.reporting.units import grouped

THOROUGH = 64  # of more ranks only a few are compared, including both ends
MOST_TRANSFERS = 10_000_000  # steps and messages: some minutes, some GB

Hosts = Sequence[int] | None
Seen = tuple[int, ...]


class Prices:
    """Price collectives on a network, and keep all prices."""

    def __init__(self, network: Network, ranks: int, segment_bytes: int, itemsize: int = 4) -> None:
        one_host = len(set(network.hosts or ())) < 2  # then no port is shared
        self.network = replace(network, hosts=None) if one_host else network
        self.ranks, self.segment_bytes, self.itemsize = ranks, segment_bytes, itemsize
        self.hosts = self.network.neighbourhoods(ranks)
        self.found = defaultdict[tuple[str, str], dict[int, float]](dict)  # seconds by bytes
        self.alike: dict[tuple[Program, ...], int] = {}  # pieces by the ends' programs
        self.replays: dict[tuple[str, str, int], Lockstep | StandIns] = {}  # by algorithm, collective and pieces

    def on(self, network: Network) -> Prices:
        found = copy(self)
        found.network, found.found = replace(network, hosts=self.network.hosts), defaultdict(dict)
        return found

    def seconds(self, algorithm: str, collective: str, nbytes: Sequence[int] | Array) -> Array:
        """Return the seconds until the last rank is done, for whole buffers of these bytes, in equal shards.

        ValueError: as ``check_algorithm``, indivisible bytes, or too much to replay.

        >>> prices = Prices(Network(beta=1e-9), ranks=4096, segment_bytes=1 << 20)
        >>> prices.seconds("ring", "all_gather", [4096 * 1000, 4096 * 2000]).round(6)
        array([0.004095, 0.00819 ])
        """
        asked = [int(each) for each in nbytes]
        self.check_algorithm(algorithm, [collective])
        wrong = [each for each in asked if each < 0 or each % (self.ranks * self.itemsize)]
        if wrong:
            grain = f"{self.ranks} ranks x {self.itemsize} bytes"
            raise ValueError(f"nbytes must be >= 0 and divisible by {grain}, not {wrong[0]}")
        function, found = find_algorithm(algorithm, collective), self.found[algorithm, collective]
        for pieces, group in grouped(sorted({*asked} - {*found}), partial(self.pieces, function)).items():
            key = algorithm, collective, pieces
            if key not in self.replays:
                rates, even = self.network.rates, self.network.ports
                ranks = find_stand_ins(function, self.ranks, self.hosts, pieces, rates=rates, even=even)
                self.replays[key] = find_lockstep(ranks, self.network) or ranks
            times = self.replays[key].seconds(self.network, np.array(group) // self.itemsize, self.itemsize)
            found.update(zip(group, times.tolist(), strict=True))
        return np.array([found[each] for each in asked])

    def pieces(self, function: Algorithm, nbytes: int) -> int:
        """Return an algorithm's number of pieces: an earlier one if the ends' programs are equal."""
        if not asks_for(function, "pieces"):
            return 1
        pieces = -(-nbytes // self.segment_bytes)
        how: dict[str, Any] = {"hosts": self.hosts, "rates": self.network.rates, "pieces": pieces}
        ends = tuple(write_program(function, rank, self.ranks, **how) for rank in (0, self.ranks - 1))
        return self.alike.setdefault(ends, pieces)

    def one_s(self, algorithm: str, collective: str, nbytes: int) -> float:
        return float(self.seconds(algorithm, collective, [nbytes])[0])

    def check_algorithm(self, algorithm: str, collectives: Iterable[str]) -> None:
        """Raise ValueError unless the algorithm has these collectives and sends messages."""
        if runner_of(algorithm) != "messages":
            raise ValueError(f"algorithm {algorithm!r} sends no messages, so it has no price on a network")
        for collective in collectives:
            find_algorithm(algorithm, collective)


@dataclass(frozen=True)
class StandIns:
    """Programs of the first ranks, which represent all ``size`` ranks."""

    programs: tuple[Program, ...]
    size: int

    def nbytes(self, counts: Any, itemsize: int, chunks: range) -> Any:
        """Return the bytes of these chunks of any rank's shard, or of this shard and the next ones.

        ``counts`` are elements of buffers, an int or int64 of shape (sizes,), each divisible by the number of ranks.

        >>> program = Program("all_gather", 0, 2, (), parts=4)
        >>> StandIns((program,), size=2).nbytes(np.array([20, 40]), 1, range(3, 5))
        array([ 5, 10])
        """
        shares, parts = counts // self.size, self.programs[0].parts
        small, larger = divmod(shares, parts)

        def border(chunk: int) -> Any:
            """Elements before a chunk, in whole shards and in parts of the next."""
            shards, part = divmod(chunk, parts)
            return shards * shares + part * small + np.minimum(part, larger)

        first = chunks.start % parts
        return itemsize * (border(first + len(chunks)) - border(first))

    def seconds(self, network: Network, counts: Array, itemsize: int) -> Array:
        """Return the seconds until the last rank is done, by buffer size; see ``nbytes``. ProgramError: deadlock."""

        def one_s(count: int) -> float:
            nbytes = cache(lambda chunks: int(self.nbytes(count, itemsize, chunks)))
            run = Simulation(self.programs, nbytes, network, self.size)
            run.to_the_end()
            return run.time_s

        return np.array([one_s(count) for count in counts.tolist()])


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
    """Return the fewest ranks that can represent all. Raises ValueError if there is too much to replay.

    Args:
        hosts: of each rank, counted from 0, if ranks of a host share ports.
        even: whether the network looks the same from each host; if not, no rank represents another.
    """
    program = cache(lambda rank: write_program(algorithm, rank, size, hosts=hosts, rates=rates, pieces=pieces))
    seen = cache(lambda rank: outline(program(rank)))

    def pairs(few: int) -> Iterable[tuple[int, int]]:
        """Return pairs of a rank and one that it would represent; of many only near, half-way and far ones."""
        if size <= thorough:
            return ((rank % few, rank) for rank in range(few, size))
        shifts = {few, size // few // 2 * few, size - few}
        return ((rank, rank + shift) for shift in shifts for rank in {0, few // 2, few - 1})

    def whole_hosts(few: int) -> bool:
        """Whether a shift by ``few`` ranks maps hosts to hosts."""
        return hosts is None or all(
            later == earlier + hosts[few - 1] + 1 for earlier, later in zip(hosts, hosts[few:], strict=False)
        )

    divisors = (few for few in range(1, size // 2 + 1) if even and size % few == 0 and whole_hosts(few))
    alike = (few for few in divisors if all(seen(rank) == seen(other) for rank, other in pairs(few)))
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


def outline(program: Program) -> list[tuple[list[Seen], list[Seen]]]:
    """Return peers' distances, first parts and numbers of chunks."""

    def seen(transfer: Send | Receive) -> Seen:
        away, chunks = (transfer.peer - program.rank) % program.size, transfer.chunks
        return away, chunks.start % program.parts, len(chunks)

    return [
        ([seen(send) for send in step.sends], [(*seen(receive), receive.combine) for receive in step.receives])
        for step in program.steps
    ]


# Senders, receivers, kinds, a column of 0 and 1 (combine), the number of identical steps.
Round: TypeAlias = tuple[Array | slice, Array | slice, Array, Array, int]


@dataclass(frozen=True)
class Lockstep:
    """Programs as rounds. Messages of a kind, (chunks relative to a shard, distance), take equally long."""

    ranks: StandIns
    kinds: Sequence[tuple[range, int]]
    rounds: Sequence[Round]

    def seconds(self, network: Network, counts: Array, itemsize: int) -> Array:
        """See ``StandIns.seconds``."""
        links = [network.link(distance) for _, distance in self.kinds]
        moved = [self.ranks.nbytes(counts, itemsize, chunks) for chunks, _ in self.kinds]
        nbytes = np.array(moved).reshape(-1, len(counts))
        alpha_s, beta_s, o_s = np.array([[link.alpha, link.beta, link.o] for link in links]).reshape(-1, 3).T[..., None]
        move_s, sum_s = nbytes * beta_s, nbytes * network.gamma
        done_s = np.zeros((len(self.ranks.programs), len(counts)))
        for senders, receivers, kinds, combine, times in self.rounds:
            alpha, move, o, combined_s = alpha_s[kinds], move_s[kinds], o_s[kinds], combine * sum_s[kinds]
            for _ in range(times):
                handed_s = done_s.copy()
                handed_s[senders] += o
                over_s = np.maximum(handed_s[senders], done_s[receivers]) + alpha + move
                taken_s = np.maximum(handed_s[receivers], over_s) + o + combined_s
                done_s[senders] = over_s  # never before the previous operation's end
                done_s[receivers] = np.maximum(done_s[receivers], taken_s)
        latest_s: Array = done_s.max(axis=0)
        return latest_s


def find_lockstep(ranks: StandIns, network: Network) -> Lockstep | None:
    """Convert programs to rounds; None if two messages could meet at a port, ports differ, or one has no other end."""
    if type(network).capacity is not Network.capacity:
        return None
    kinds = dict[tuple[range, int], int]()
    users = dict[Side, tuple[str, int]]()  # the row that uses a side
    few, found = len(ranks.programs), list[tuple[tuple[int, int, int, int], ...]]()
    for steps in zip_longest(*(program.steps for program in ranks.programs), fillvalue=Step()):
        if any(len(step.sends) > 1 or len(step.receives) > 1 for step in steps) or ranks.programs[0].scratch:
            return None
        messages = []
        for row, send in ((row, send) for row, step in enumerate(steps) for send in step.sends):
            target, distance = send.peer % few, network.distance(row, send.peer)
            source = (row - send.peer + target) % ranks.size  # as the receiver sees it
            received = [each for each in steps[target].receives if each.peer == source]
            ways = {("send", row): network.way_out(row, send.peer), ("receive", target): network.way_in(target, source)}
            met = any(users.setdefault(side, user) != user for user, way in ways.items() for side in way)
            if met or not received:
                return None
            first = send.chunks.start % ranks.programs[0].parts
            kind = kinds.setdefault((range(first, first + len(send.chunks)), distance), len(kinds))
            messages.append((row, target, kind, int(received[0].combine)))
        if len(messages) < sum(len(step.receives) for step in steps):
            return None
        found.append(tuple(messages))

    def taken(rows: Array) -> Array | slice:
        """Return a slice for all rows, which avoids a copy."""
        return slice(None) if np.array_equal(rows, np.arange(few)) else rows

    rounds = []
    for each, same in groupby(found):
        senders, receivers, numbers, combine = np.array(each, int).reshape(-1, 4).T
        rounds.append((taken(senders), taken(receivers), numbers, combine[:, None], len([*same])))
    return Lockstep(ranks, tuple(kinds), rounds)
