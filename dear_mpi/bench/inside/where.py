"""Where the time goes, beside how much it is: what ``--steps`` and ``--overlap`` find once the rows are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dear_mpi.bench.case import Case, Prepared
from dear_mpi.bench.inside.overlap import Effort, Overlap, overlap_of
from dear_mpi.bench.inside.steps import Steps, steps_of
from dear_mpi.bench.makers.contestants import contestant, named
from dear_mpi.bench.stand import Stand
from dear_mpi.bench.timing.interleaved import Interleaved, Key
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.reporting.units import grouped
from dear_mpi.training.declared import Declared, option

MOST_TESTS = 10**6
NONBLOCKING = "native-nonblocking"
ON_HOST = {"steps": "on a GPU a call only launches what combines and copies", "overlap": "the compute is the host's"}
Cases = Mapping[Case, Sequence[Key]]  # with who takes part in each


@dataclass(frozen=True)
class Where:
    """What was found."""

    steps: list[Steps] = field(default_factory=list)
    overlap: list[Overlap] = field(default_factory=list)

    def __add__(self, more: Where) -> Where:
        return Where(self.steps + more.steps, self.overlap + more.overlap)

    def as_report(self) -> dict[str, list[dict[str, Any]]]:
        """What a report has of it, under the names of the flags; nothing of what was not asked for."""
        found = {"steps": [each.as_row() for each in self.steps], "overlap": [each.as_row() for each in self.overlap]}
        return {name: rows for name, rows in found.items() if rows}


@dataclass(frozen=True, kw_only=True)
class Closer(Declared):
    """What a run of the benchmark looks at more closely."""

    steps: bool = option(
        "Also record our plans at the largest size: where the time goes, step by step.", False, flag="--steps"
    )
    overlap: bool = option(
        "Also run our plans and MPI's non-blocking call beside compute, and say how much of them it hides.",
        False,
        flag="--overlap",
    )
    tests: int = option(
        "With --overlap: calls of advance(), or of MPI_Test, during the compute.", 16, least=0, most=MOST_TESTS
    )

    def check_device(self, device: str) -> None:
        for name, why in ON_HOST.items():
            if getattr(self, name) and device != "cpu":
                raise ValueError(f"{name} needs the device cpu: {why}")

    def where(self, cases: Cases, stand: Stand, seconds: float) -> Where:
        """Collective: spend so many seconds on each case for each of what was asked for."""
        by_collective = grouped(cases, lambda case: case.collective).values()
        largest = [max(each, key=lambda case: case.nbytes) for each in by_collective]  # the first of several
        where = Where()
        for case in largest if self.steps else ():
            with prepared(case, ours(cases[case]), stand) as ready:
                for name, each in ready.items():
                    assert isinstance(each.run, Plan), "it is one of ours"
                    where.steps.extend(steps_of(name, case, each.run, stand.world, seconds / len(ready)))
        for case, keys in cases.items() if self.overlap else ():
            theirs = [(NONBLOCKING, keys[0][1])] * (stand.world.transport.native is not None)
            with prepared(case, [*ours(keys), *theirs], stand) as ready:
                how = Effort(self.tests, seconds / max(len(ready), 1))
                for name, each in ready.items():
                    where.overlap.extend(overlap_of(name, case, each, stand.world.transport, how))
        return where


def ours(keys: Sequence[Key]) -> list[Key]:
    return [key for key in keys if contestant(key[0]).is_plan]


@contextmanager
def prepared(case: Case, keys: Sequence[Key], stand: Stand) -> Iterator[dict[str, Prepared]]:
    """The contestants that can take part, by what a reader calls them, on buffers of zeros, which stay zeros."""
    several = len({cut for _, cut in keys}) > 1
    interleaved = Interleaved(case, keys, stand)
    found = {}
    for (name, cut), (each, data) in interleaved.ready.items():
        data.clear()
        found[named(name, each.chosen, cut if several else None)] = each
    yield found
    interleaved.free()
