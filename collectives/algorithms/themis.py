"""Themis: two dimensions, inside hosts and between them; parts of the buffer take them in different orders.

            2 hosts of 3 ranks: an all_gather of two parts, as rank 0 has it

            phase 1    part 0   0 --> 3 --> (0)          part 1   0 --> 1 --> 2 --> (0)
            phase 2    part 0   0 --> 1 --> 2 --> (0)    part 1   0 --> 3 --> (0)

``hierarchical.py`` has rings between hosts first, of single chunks, and then rings inside, of all that the first have
brought; while one dimension works, the other rests. Here some parts go the other way round, so both work in both
phases. The other order sends Q times the bytes between hosts, and 1/R of the bytes inside. So it pays where the inside
is what one waits for: (Q-1)/b > (R-1)/(R b'), with the rates b and b' of a rank inside and between hosts.

Loads decide, in seconds of n bytes: inside (Q-1)/Q n/b in the usual order, or 1/R of it in the other one; between
(R-1)/R n/Q / b', or Q times as much. Each part in turn takes the order after which the fuller dimension is least full.
(The paper sends it to the emptier dimension first, which is the same for parts that are small enough.) All parts keep
the usual order where both phases together would not be shorter, where hosts have different numbers of ranks, where the
rates are not known, or where parts would be below some .12 MiB, as in the authors' code.

The shorter ring of a phase runs several times, each time with a share of its parts, so that it takes as many steps as
the longer one. Then neither waits for the other.

Cost for n bytes, with a of them in the usual order: max(a B, (1-a) I/R) + max(a I, (1-a) Q B), where the usual order
takes I inside + B between; 2 (max(Q, R) - 1) steps. I + B becomes half of that at b = b' where Q = R. The bytes are the
ring's, in more messages.

Source: Rashidi et al., Themis: a network bandwidth-aware collective scheduling policy for distributed training of DL
models, ISCA 2022 (arXiv 2110.04478), section 4.
"""

from collections.abc import Sequence
from functools import partial
from math import gcd, lcm
from typing import NamedTuple

from dear_mpi.collectives.algorithms import hierarchical
from dear_mpi.collectives.algorithms.grid import around, merged
from dear_mpi.collectives.program.hosts import Rates, by_host
from dear_mpi.collectives.program.program import Program, Step

MOST_PARTS = 8  # that the greedy choice tells apart
PIECES = 2  # at least, in each run of a ring: some .12 MiB in segments of the size between hosts


class Pair(NamedTuple):
    """A figure of each dimension."""

    inside: float
    between: float


def all_gather(rank: int, size: int, hosts: Sequence[int], rates: Rates | None = None, pieces: int = 1) -> Program:
    members = by_host(hosts)
    usual, other = split(members, rates, pieces)
    if not other:
        return hierarchical.all_gather(rank, size, hosts)
    columns = list(zip(*members, strict=True))
    home = next(ranks for ranks in members if rank in ranks)
    column = columns[home.index(rank)]
    length, parts = max(len(home), len(column)) - 1, usual + other
    ring = partial(rings, rank, parts=parts, length=length)
    own_column, own_home = ([[rank] for rank in group] for group in (column, home))  # each has its own shard at first
    first = [ring(column, own_column, range(usual)), ring(home, own_home, range(usual, parts))]
    then = [ring(home, columns, range(usual)), ring(column, members, range(usual, parts))]
    return Program("all_gather", rank, size, (*merged(first, length), *merged(then, length)), parts)


def rings(
    rank: int, group: Sequence[int], owners: Sequence[Sequence[int]], run: range, *, parts: int, length: int
) -> list[Step]:
    """A ring of a group, as often as it fits into ``length`` steps, each time with a share of a run of parts of those
    shards that each member has at first."""
    times = length // (len(group) - 1)
    steps = []
    for share in (run[len(run) * i // times : len(run) * (i + 1) // times] for i in range(times)):
        sets = [[parts * owner + part for owner in each for part in share] for each in owners]
        steps += around(rank, group, sets)
    return steps


def split(members: Sequence[Sequence[int]], rates: Rates | None, pieces: int) -> tuple[int, int]:
    """How many parts take the usual order, and how many the other one: numbers that the rings can share out evenly.

    >>> split([[0, 1], [2, 3]], Rates(1e9, 1e9), pieces=100), split([[0, 1], [2, 3]], Rates(8e9, 1e9), pieces=100)
    ((1, 1), (1, 0))
    """
    across, ranks = len(members), len(members[0])
    if rates is None or min(across, ranks) == 1 or any(len(each) != ranks for each in members):
        return 1, 0
    steps, length = (ranks - 1, across - 1), max(across, ranks) - 1
    times = length // min(steps)
    parts = min(MOST_PARTS, pieces // (PIECES * times))
    usual, other = loads(ranks, across, rates)
    count = greedy(usual, other, parts)
    idle = Pair(*(length % each / length for each in steps))
    if not parts or two_phases_s(usual, other, count / parts, idle) >= sum(usual):
        return 1, 0
    counts = [each // gcd(count, parts) for each in (count, parts - count)]
    scale = lcm(*(times // gcd(times, each) for each in counts)) if count else 1
    return counts[0] * scale, counts[1] * scale


def loads(ranks: int, across: int, rates: Rates) -> tuple[Pair, Pair]:
    """Seconds that one byte of the buffer takes of each dimension, in the usual order and in the other one."""
    inside, between = rates
    whole = Pair((ranks - 1) / ranks / inside, (across - 1) / across / between)
    return Pair(whole.inside, whole.between / ranks), Pair(whole.inside / across, whole.between)


def greedy(usual: Pair, other: Pair, parts: int) -> int:
    """How many of these parts take the usual order, if each in turn takes what leaves the fuller dimension emptier."""
    done, count = Pair(0.0, 0.0), 0
    for _ in range(parts):
        after = [Pair(done.inside + each.inside, done.between + each.between) for each in (usual, other)]
        done = min(after, key=max)
        count += done is after[0]
    return count


def two_phases_s(usual: Pair, other: Pair, share: float, idle: Pair) -> float:
    """Seconds of both phases for a byte of the buffer, of which this share takes the usual order; ``idle`` is that part
    of a phase in which the rings of a dimension have no step left."""

    def phase_s(inside: float, between: float) -> float:
        return max(inside + between * idle.inside, between + inside * idle.between)

    rest = 1 - share
    return phase_s(rest * other.inside, share * usual.between) + phase_s(share * usual.inside, rest * other.between)
