"""Guidelines: what a collective should never take longer than, because other calls do the same or more.

    all_reduce   ################# 95 us       a breach: who needs an all_reduce had better make the two calls below
    in its place ##### 30 us, then ###### 31 us

A library that keeps them all has no call that a user could better replace by hand. None does: where a library takes
another algorithm, from some size on, it is often the wrong one.

Sizes are those of rows: the full buffer. Times are medians. Calls one after the other, begun together, take at most the
sum of their times, so a breach is no artefact of the sum. But rows of different collectives and sizes were measured one
after the other: what disturbs the machine for a second can look like a breach, so one that matters is measured twice.

Source: Traeff, Gropp and Thakur, Self-Consistent MPI Performance Guidelines (IEEE TPDS 21, 2010); Hunold,
Carpen-Amarie, Luebbe and Traeff, PGMPI (arXiv 1606.00215), which has most of this table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TypeAlias

from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import BEST, contestant
from dear_mpi.reporting.units import grouped

Term: TypeAlias = tuple[Row, int]  # a call, and how often it is made
Find: TypeAlias = Callable[[Row, Sequence[Row]], Term | None]
Conditions: TypeAlias = tuple[object, ...]


def same_size(row: Row, found: Sequence[Row]) -> Term | None:
    """The same, up to the rounding of sizes to whole elements of each rank."""
    near = [each for each in found if abs(each.bytes - row.bytes) < grain(row)]
    return (min(near, key=lambda each: abs(each.bytes - row.bytes)), 1) if near else None


def for_each_rank(row: Row, found: Sequence[Row]) -> Term | None:
    """The smallest of those in which each rank brings as much as here the root alone."""
    return smallest(row.bytes * row.ranks, found)


def any_size(row: Row, found: Sequence[Row]) -> Term | None:
    return smallest(0, found)


def next_larger(row: Row, found: Sequence[Row]) -> Term | None:
    return smallest(row.bytes + 1, found)


def in_pieces(row: Row, found: Sequence[Row]) -> Term | None:
    """The next smaller size, as often as it takes, if it is a whole part of this one."""
    smaller = max((each for each in found if 0 < each.bytes < row.bytes), key=by_size, default=None)
    return None if smaller is None or row.bytes % smaller.bytes else (smaller, row.bytes // smaller.bytes)


by_size = attrgetter("bytes")


def smallest(nbytes: int, found: Sequence[Row]) -> Term | None:
    least = min((each for each in found if each.bytes >= nbytes), key=by_size, default=None)
    return None if least is None else (least, 1)


def grain(row: Row) -> int:
    return row.ranks * (row.bytes // row.count if row.count else 1)


@dataclass(frozen=True)
class Guideline:
    """A call should take no longer than others together, made one after the other."""

    calls: tuple[str, ...]  # those in its place; the same collective if none is named
    text: str  # of the guideline, S for the size
    instead: str  # what a user can do where it is broken
    find: Find = same_size  # the size of those in its place

    def terms(self, row: Row, rows: Mapping[str, Sequence[Row]]) -> list[Term] | None:
        """What takes its place; None where that was not measured."""
        found = [self.find(row, same_op(row, rows.get(name, ()))) for name in self.calls or (row.collective,)]
        terms = [term for term in found if term is not None]
        return terms if len(terms) == len(found) else None


def same_op(row: Row, rows: Sequence[Row]) -> list[Row]:
    """Those that combine with the same op, or with none; a call that combines nothing may stand for a sum."""
    op = "sum" if row.op == "none" else row.op
    return [each for each in rows if each.op in (op, "none")]


two = partial(Guideline, instead="make these two calls instead")
one = partial(Guideline, instead="make that call instead, and take from its result what is needed")
zeros = partial(Guideline, instead="make that call instead, with zeros in place of what the other ranks bring")
LARGER = Guideline((), "{0}(S) <= {0}(larger S)", "a buffer that is padded to that size is faster", next_larger)
PIECES = Guideline((), "{0}(S) <= k {0}(S / k)", "cut the buffer, and make that call for each piece", in_pieces)
GUIDELINES: Mapping[str, tuple[Guideline, ...]] = {
    "all_reduce": (
        two(("reduce_scatter", "all_gather"), "all_reduce(S) <= reduce_scatter(S) + all_gather(S)"),
        two(("reduce", "broadcast"), "all_reduce(S) <= reduce(S) + broadcast(S)"),
        PIECES,
    ),
    "reduce_scatter": (
        one(("all_reduce",), "reduce_scatter(S) <= all_reduce(S)"),
        two(("reduce", "scatter"), "reduce_scatter(S) <= reduce(S) + scatter(S)"),
    ),
    "all_gather": (
        zeros(("all_reduce",), "all_gather(S) <= all_reduce(S)"),
        one(("all_to_all",), "all_gather(S) <= all_to_all(S)"),
        two(("gather", "broadcast"), "all_gather(S) <= gather(S) + broadcast(S)"),
    ),
    "broadcast": (
        two(("scatter", "all_gather"), "broadcast(S) <= scatter(S) + all_gather(S)"),
        one(("all_gather",), "broadcast(S) <= all_gather(n S)", find=for_each_rank),
        zeros(("all_reduce",), "broadcast(S) <= all_reduce(S)"),
        PIECES,
    ),
    "reduce": (
        one(("all_reduce",), "reduce(S) <= all_reduce(S)"),
        two(("reduce_scatter", "gather"), "reduce(S) <= reduce_scatter(S) + gather(S)"),
        PIECES,
    ),
    "gather": (
        one(("all_gather",), "gather(S) <= all_gather(S)"),
        zeros(("reduce",), "gather(S) <= reduce(S)"),
    ),
    "scatter": (
        one(("broadcast",), "scatter(S) <= broadcast(S)"),
        one(("all_to_all",), "scatter(S) <= all_to_all(S)"),
    ),
    "barrier": (one(("all_reduce",), "barrier <= all_reduce(S)", find=any_size),),
}
CONDITIONS = attrgetter(
    *("algorithm", "backend", "device", "ranks", "hosts", "dtype", "placement", "cadence", "start", "arrival"),
    "memory",
)


def conditions(row: Row) -> Conditions:
    """What the rows of a guideline have in common; how messages are cut matters to ours alone."""
    same = map(str, CONDITIONS(row))
    return (*same, row.segment_bytes if contestant(row.algorithm).segments else 0)


def pairs(rows: Sequence[Row]) -> Iterator[tuple[Guideline, Row, list[Term]]]:
    """Each guideline that can be judged: the call, and what takes its place, both with right results."""
    right = [row for row in rows if row.ranks > 1 and row.is_balanced and not row.wrong]
    several = [*right, *best_calls(right)]
    for alike in grouped(several, conditions).values():
        group = grouped(alike, attrgetter("collective"))
        for row in (row for same in group.values() for row in same):
            for guideline in (*GUIDELINES.get(row.collective, ()), LARGER):
                if terms := guideline.terms(row, group):
                    yield guideline, row, terms


def best_calls(rows: Sequence[Row]) -> list[Row]:
    """The fastest call of each library in each case, where it has several; ``chosen`` is which.

    The ends of its interval are the least of all calls: the fastest one of many is often one that had luck.
    """
    calls_of_all = [row for row in rows if contestant(row.algorithm).is_library]
    cases = grouped(calls_of_all, lambda row: (*conditions(named_best(row)), row.collective, row.bytes, row.op))
    return [best(calls) for calls in cases.values() if len(calls) > 1]


def named_best(row: Row) -> Row:
    return replace(row, algorithm=contestant(row.algorithm).maker + BEST)


def best(calls: Sequence[Row]) -> Row:
    fastest = min(calls, key=lambda row: row.p50_us)
    low_us, high_us = (min(getattr(row, end) for row in calls) for end in ("ci_low_us", "ci_high_us"))
    samples = min(row.samples for row in calls)
    return replace(
        named_best(fastest),
        chosen=fastest.algorithm,
        samples=samples,
        ci_low_us=low_us,
        ci_high_us=max(high_us, fastest.p50_us),
        times_us=None,
    )
