"""Prices of collectives, kept by what was asked. Few ranks stand for all others, where these do the same:

        ring, 4096 ranks                        rank 0 stands for all
        torus of 64 x 64                        ranks 0 to 63, the first row
        hierarchical, 64 hosts of 16 ranks      ranks 0 to 15, the first host
        binomial tree                           no rank stands for another: all ranks

Ranks do the same if the program of rank r + q is the program of rank r with q added to all peers: then the first q
ranks are enough. Which chunks they send may differ, if these are equally long. If ranks of a host share ports, the
first q ranks must be whole hosts, and all hosts alike. Up to 64 ranks this is found by looking at all of them; beyond,
at a few, the first and the last among them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol

import numpy as np

from dear_mpi.collectives.algorithms.registry import find_algorithm, lacks_rates, runner_of
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import Algorithm, Program, Receive, Send, asks_for, write_program
from dear_mpi.kernels.array import Array
from dear_mpi.simulate.prices.lockstep import Columns, find_lockstep
from dear_mpi.simulate.topology import ShapedNetwork, Topology

Key = tuple[str, str, int]
"""Algorithm, collective, and into how many pieces the buffer is cut."""


class Replay(Protocol):
    """The programs of a collective on all ranks, as they are replayed."""

    def seconds(self, network: Network, counts: Array, itemsize: int) -> Array:
        """The time until the last rank is done, for buffers of so many elements, of so many bytes each.

        Args:
            network: of any costs, with the hosts that the programs were written for.
            counts: int64, shape (sizes,), each divisible by the number of ranks.

        Returns:
            float64, shape (sizes,).

        Raises:
            ProgramError: the programs deadlock (``verify`` says where).
        """


@dataclass(frozen=True)
class Prices:
    """What collectives cost on a network among so many ranks.

    Attributes:
        segment_bytes: algorithms that send the buffer piece by piece make pieces of about this size.
        itemsize: bytes of an element: chunks are cut between elements.
        found: (algorithm, collective, bytes): seconds, of all that was asked so far.
        alike: by programs of the first and the last rank, the first number of pieces that had these.
        replays: the programs that were replayed for that: in lockstep, where no two of their messages meet.
    """

    network: Network
    ranks: int
    segment_bytes: int
    itemsize: int = 4
    found: dict[tuple[str, str, int], float] = field(default_factory=dict, repr=False)
    alike: dict[tuple[Program, ...], int] = field(default_factory=dict, repr=False)
    replays: dict[Key, Replay] = field(default_factory=dict, repr=False)

    def seconds(self, algorithm: str, collective: str, nbytes: Sequence[int] | Array) -> Array:
        """The time until the last rank is done: what ``cost`` says for equal shards.

        Beyond 64 ranks, a few stand for all if they look alike at some places (``find_stand_ins``).

        Args:
            nbytes: of whole buffers, shape (sizes,), each divisible by ranks x itemsize.

        Returns:
            float64, shape (sizes,), in seconds.

        Raises:
            ValueError: as for ``check_algorithm``; bytes that cannot be cut into equal shards; or too much to replay.

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
        groups = defaultdict[Key, list[int]](list)
        function = find_algorithm(algorithm, collective)
        for each in sorted({each for each in asked if (algorithm, collective, each) not in self.found}):
            groups[algorithm, collective, self.pieces(function, each)].append(each)
        for key, group in groups.items():
            times = self.replayed(key, group)
            self.found.update({(algorithm, collective, each): float(s) for each, s in zip(group, times, strict=True)})
        return np.array([self.found[algorithm, collective, each] for each in asked])

    def pieces(self, function: Algorithm, nbytes: int) -> int:
        """Into how many pieces an algorithm is told that the buffer is cut: as many as of an earlier one, if the first
        and the last rank then do the same."""
        if not asks_for(function, "pieces"):
            return 1
        pieces, hosts, rates = -(-nbytes // self.segment_bytes), self.hosts, self.plain.rates
        ends = tuple(
            write_program(function, rank, self.ranks, hosts=hosts, rates=rates, pieces=pieces)
            for rank in (0, self.ranks - 1)
        )
        return self.alike.setdefault(ends, pieces)

    def one_s(self, algorithm: str, collective: str, nbytes: int) -> float:
        """The same for one buffer."""
        return float(self.seconds(algorithm, collective, [nbytes])[0])

    def check_algorithm(self, algorithm: str, collectives: Iterable[str]) -> None:
        """Raise a ValueError if there is no such algorithm of these collectives, or none that sends messages."""
        if runner_of(algorithm) != "messages":
            raise ValueError(f"algorithm {algorithm!r} sends no messages, so it has no price on a network")
        for collective in collectives:
            find_algorithm(algorithm, collective)

    def replayed(self, key: Key, nbytes: Sequence[int]) -> Array:
        """The times of buffers that are cut into as many pieces."""
        if key not in self.replays:
            self.replays[key] = self.replay(*key)
        return self.replays[key].seconds(self.plain, np.array(nbytes) // self.itemsize, self.itemsize)

    def replay(self, algorithm: str, collective: str, pieces: int) -> Replay:
        function, network, even = find_algorithm(algorithm, collective), self.plain, self.topology is None
        ranks = find_stand_ins(function, self.ranks, self.hosts, pieces, rates=network.rates, even=even)
        return find_lockstep(ranks, network) or Columns(ranks)

    def lacks_rates(self, algorithm: str) -> bool:
        """Whether an algorithm asks for the rates inside hosts and between them, which a topology does not have."""
        return lacks_rates(algorithm, self.hosts or (), self.plain.rates)

    @property
    def topology(self) -> Topology | None:
        return self.network.topology if isinstance(self.network, ShapedNetwork) else None

    @property
    def hosts(self) -> Sequence[int] | None:
        """The hosts that programs are written for."""
        return self.plain.hosts if self.topology is None else self.topology.neighbourhoods(self.ranks)

    @property
    def plain(self) -> Network:
        """The network, without hosts if there is one alone: then no port is shared."""
        return replace(self.network, hosts=None) if len(set(self.network.hosts or ())) < 2 else self.network


THOROUGH = 64  # up to so many ranks, all are looked at
MOST_TRANSFERS = 10_000_000  # steps and messages together: some minutes, and some GB of memory

Hosts = Sequence[int] | None
Seen = tuple[int, ...]


@dataclass(frozen=True)
class StandIns:
    """The programs of the first ranks, which stand for all ``size`` of them."""

    programs: tuple[Program, ...]
    size: int

    def nbytes(self, counts: Array, itemsize: int, chunks: range) -> Array:
        """The bytes of these chunks of any rank's shard, or of this and the next ones.

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
            """Elements before a chunk: of whole shards, and of some of the parts that the next shard is cut into."""
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
    """As few ranks as can stand for all.

    Args:
        hosts: the number of the host of each rank, whose ranks share ports; None where no ports are shared.
        pieces, rates: for algorithms that ask for them.
        even: whether the network looks the same from each host; if not, no rank stands for another.
        thorough: up to so many ranks, all are looked at.

    Raises:
        ValueError: no few ranks stand for all, and there is too much to replay.
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
    """Pairs of a rank and one that it would stand for."""
    return [(rank % few, rank) for rank in range(few, size)]


def samples(few: int, size: int) -> list[tuple[int, int]]:
    """Some of these pairs: the first and the last of few, with those next to them, half-way, and far."""
    shifts = {few, size // few // 2 * few, size - few}
    return [(rank, rank + shift) for shift in sorted(shifts) for rank in sorted({0, few // 2, few - 1})]


def whole_hosts(hosts: Hosts, few: int) -> bool:
    """Whether a shift by this many ranks turns hosts into hosts, and no other rank is on a host of the first few."""
    if hosts is None:
        return True
    number = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    numbers = [number[host] for host in hosts]
    step = len(set(numbers[:few]))
    return all(later == earlier + step for earlier, later in zip(numbers, numbers[few:], strict=False))


def outline(program: Program) -> list[tuple[list[Seen], list[Seen]]]:
    """What a program does, seen from its own rank: how far each peer is, from which part on, and how many chunks."""

    def seen(transfer: Send | Receive) -> Seen:
        away, chunks = (transfer.peer - program.rank) % program.size, transfer.chunks
        return away, chunks.start % program.parts, len(chunks)

    return [
        ([seen(send) for send in step.sends], [(*seen(receive), receive.combine) for receive in step.receives])
        for step in program.steps
    ]
