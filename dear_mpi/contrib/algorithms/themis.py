"""Themis: chunks of the buffer cross two dimensions, inside and between hosts, in different orders.

            2 hosts of 3 ranks: an all_gather of two chunks per shard, as rank 0 has it

            phase 1    chunk 0   0 --> 3 --> (0)          chunk 1   0 --> 1 --> 2 --> (0)
            phase 2    chunk 0   0 --> 1 --> 2 --> (0)    chunk 1   0 --> 3 --> (0)

In ``hierarchical`` one dimension always rests. Here some chunks take the other order, which sends Q times the bytes
between hosts and 1/R of the bytes inside. It pays if the inside is the bottleneck: (Q-1)/b > (R-1)/(R b') for rates b
inside and b' between hosts. Each chunk in turn takes the order that leaves the fuller dimension emptier. (The paper
sends it to the emptier dimension first, which is equal for small chunks.)

All chunks keep the usual order in four cases: two phases would take longer, hosts differ in size, rates are unknown, or
chunks would be below about .12 MiB (as in the authors' code). The shorter ring of a phase runs several times, so that
neither waits.

Cost for n bytes, a of them in the usual order: max(a B, (1-a) I/R) + max(a I, (1-a) Q B), where the usual order takes I
inside + B between; 2 (max(Q, R) - 1) steps.

Source: Rashidi et al., Themis: a network bandwidth-aware collective scheduling policy for distributed training of DL
models, ISCA 2022 (arXiv 2110.04478), section 4.
"""

import os
import sys
from collections.abc import Sequence
from functools import cache, partial
from math import gcd, lcm
from typing import NamedTuple

from dear_mpi.collectives.algorithms.hierarchical import all_gather as hierarchical
from dear_mpi.collectives.algorithms.ring import around, merged
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.program.hosts import Rates, by_host
from dear_mpi.collectives.program.program import Program, Step

MOST_PARTS = 8  # chunks per shard
PIECES = 2  # least segments in each run of a ring: about .12 MiB


class Pair(NamedTuple):
    """One number per dimension."""

    inside: float
    between: float


def all_gather(rank: int, size: int, hosts: Sequence[int], rates: Rates | None = None, pieces: int = 1) -> Program:
    members = by_host(hosts)
    if rates is None and len(members) > 1:
        say_that_rates_lack()
    usual, other = split(members, rates, pieces)
    if not other:
        return hierarchical(rank, size, hosts)
    columns = list(zip(*members, strict=True))
    home = next(ranks for ranks in members if rank in ranks)
    column = columns[home.index(rank)]
    length, parts = max(len(home), len(column)) - 1, usual + other
    ring = partial(rings, rank, parts=parts, length=length)
    own_column, own_home = ([[rank] for rank in group] for group in (column, home))
    first = [ring(column, own_column, range(usual)), ring(home, own_home, range(usual, parts))]
    then = [ring(home, columns, range(usual)), ring(column, members, range(usual, parts))]
    return Program("all_gather", rank, size, (*merged(first, length), *merged(then, length)), parts)


@cache
def say_that_rates_lack() -> None:
    if launch_of(os.environ).rank == 0:
        what = "algorithm 'themis' works without the rates inside and between hosts, which are unknown"
        print(f"dear-mpi: {what}: give --rates, or Transport.rates", file=sys.stderr, flush=True)


def rings(
    rank: int, group: Sequence[int], owners: Sequence[Sequence[int]], run: range, *, parts: int, length: int
) -> list[Step]:
    times = length // (len(group) - 1)
    steps = []
    for share in (run[len(run) * i // times : len(run) * (i + 1) // times] for i in range(times)):
        sets = [[parts * owner + part for owner in each for part in share] for each in owners]
        steps += around(rank, group, sets)
    return steps


def split(members: Sequence[Sequence[int]], rates: Rates | None, pieces: int) -> tuple[int, int]:
    """Return how many chunks take the usual order and the other one, divisible among the rings.

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
    """Return seconds per byte in each dimension, for the usual and the other order."""
    inside, between = rates
    whole = Pair((ranks - 1) / ranks / inside, (across - 1) / across / between)
    return Pair(whole.inside, whole.between / ranks), Pair(whole.inside / across, whole.between)


def greedy(usual: Pair, other: Pair, parts: int) -> int:
    """Count the chunks in the usual order if each leaves the fuller dimension as empty as possible."""
    done, count = Pair(0.0, 0.0), 0
    for _ in range(parts):
        after = [Pair(done.inside + each.inside, done.between + each.between) for each in (usual, other)]
        done = min(after, key=max)
        count += done is after[0]
    return count


def two_phases_s(usual: Pair, other: Pair, share: float, idle: Pair) -> float:
    """Return seconds per byte of both phases; ``share`` takes the usual order.

    ``idle``: the fraction of a phase after the last step of a dimension's rings.
    """

    def phase_s(inside: float, between: float) -> float:
        return max(inside + between * idle.inside, between + inside * idle.between)

    rest = 1 - share
    return phase_s(rest * other.inside, share * usual.between) + phase_s(share * usual.inside, rest * other.between)
