"""A few ranks that stand for all others, where these do the same.

        ring, 4096 ranks                        rank 0 stands for all
        torus of 64 x 64                        ranks 0 to 63, the first row
        hierarchical, 64 hosts of 16 ranks      ranks 0 to 15, the first host
        binomial tree                           no rank stands for another: all ranks

Ranks do the same if the program of rank r + q is the program of rank r with q added to all peers: then the first q
ranks are enough. Which chunks they send may differ, if these are equally long. If ranks of a host share ports, the
first q ranks must be whole hosts, and all hosts alike. Up to 64 ranks this is found by looking at all of them; beyond,
at a few, the first and the last among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.program import Algorithm, Program, Receive, Send, write_program
from dear_mpi.kernels.array import Array

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
