"""Define a benchmark's flags, their cases, and each case's candidates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import product

from dear_mpi.bench.backends import CANDIDATES, DEFAULTS, calls_of, candidate
from dear_mpi.bench.case import OPERATIONS, PLACEMENTS, Case, Conditions
from dear_mpi.bench.data import check_exact
from dear_mpi.collectives.algorithms.registry import ALGORITHMS, find_algorithm
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.program.user_file import entry_points_of
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.world import World
from dear_mpi.reporting.declared import BETWEEN_ALGORITHMS, option, parsed, several
from dear_mpi.reporting.stats import FEWEST_SAMPLES
from dear_mpi.reporting.units import (
    SEGMENT,
    check_distinct,
    parse_bytes,
    parse_percentage,
    parse_seconds,
    parse_sizes,
)

Key = tuple[str, int]  # candidate, segment_bytes

MOST_ASKED = 10**7  # samples: all are kept
OPS = ("sum", "average", "prod", "min", "max")
THEIRS = ", ".join(["native (this job's MPI)", *entry_points_of("candidates")])
ALGORITHMS_HELP = (
    f"What to compare; the first is the baseline. Ours: {', '.join(ALGORITHMS)}, auto, FILE.py:FUNCTION, and function: "
    f"a call such as all_reduce(x, comm, algorithm='auto') on a private array. Others: {THEIRS}. "
    "native-best is the fastest of all calls of MPI, such as native-persistent"
)
BY_DEVICE = "; ".join(f"on {device}: {', '.join(names)}" for device, names in DEFAULTS.items())


@dataclass(frozen=True)
class Suite(Conditions):
    sizes: tuple[int, ...] = option(
        "Sizes of the buffer, with commas; 4B:64MiB stands for 4B, 16B, ... 64MiB, 4:64M:x2 for 4B, 8B, ...",
        typed=str,
        parse=lambda text: tuple(parsed("--sizes", parse_sizes, text)),
    )
    collectives: tuple[str, ...] = several(
        f"Collectives and messages to time: {', '.join(OPERATIONS)}", ("all_reduce",), flag="--collective"
    )
    algorithms: tuple[str, ...] = several(
        ALGORITHMS_HELP, (), flag="--algorithms", between=BETWEEN_ALGORITHMS, shown=BY_DEVICE
    )
    placements: tuple[str, ...] = several(
        "Where results go: in (over the input), out (into a second buffer)", ("in",), flag="--placement"
    )
    dtypes: tuple[str, ...] = several(f"Types of the elements: {', '.join(TYPES)}", ("fp32",), flag="--dtype")
    ops: tuple[str, ...] = several(f"Reductions: {', '.join(OPS)}", ("sum",), flag="--op")
    segments: tuple[int, ...] = option(
        "Size of our largest message; several with commas.",
        (),
        shown=SEGMENT,
        flag="--segment",
        typed=str,
        parse=lambda text: tuple(parsed("--segment", parse_bytes, size) for size in text.split(",")),
    )
    budget_s: float = option(
        f"Time for each collective at each size; {FEWEST_SAMPLES} samples are taken at least.",
        1.0,
        shown="1s",
        flag="--budget",
        typed=str,
        parse=lambda text: parsed("--budget", parse_seconds, text),
    )
    precision: float = option(
        "A size ends before its --budget is over when all medians are known this well: half of the 95 % interval is at "
        "most this part of the median.",
        0.01,
        shown="1%",
        typed=str,
        parse=lambda text: parse_percentage("--precision", text, 1.0),
    )
    iterations: int | None = option(
        "Samples of each at each size, however long that takes.",
        None,
        shown="by --budget and --precision",
        least=1,
        most=MOST_ASKED,
    )
    warmup: int = option(
        "Turns at each size before those that count; they take at most a quarter of --budget.",
        3,
        least=0,
        most=MOST_ASKED,
    )

    @property
    def names(self) -> tuple[str, ...]:
        return self.algorithms or lookup("device", self.device, DEFAULTS)

    def cases(self, ranks: int) -> list[Case]:
        conditions = {each.name: getattr(self, each.name) for each in fields(Conditions)}
        chosen = product(self.collectives, self.dtypes, self.ops, self.placements, self.sizes)
        return list(
            dict.fromkeys(
                Case.of(name, nbytes, ranks, {**conditions, "dtype": dtype, "op": op, "placement": placement})
                for name, dtype, op, placement, nbytes in chosen
            )
        )

    def keys(self, case: Case, ranks: int) -> list[Key]:
        """Return a case's candidates and segments (the largest, if they have none), each MPI call by its name."""
        cuts = [cut for cut in sorted(self.segments) if cut < case.nbytes]
        cuts += sorted(set(self.segments) - set(cuts))[:1]
        names = dict.fromkeys(call for name in self.names for call in calls_of(name, case, ranks))
        whole = max(self.segments)
        return [(name, cut) for name in names for cut in (cuts if candidate(name).segments else [whole])]

    def check_for(self, world: World) -> None:
        self.check()
        if not self.budget_s > 0:
            raise ValueError(f"budget must be above 0 s, not {self.budget_s:g} s")
        known: dict[str, Mapping[str, object]] = {
            "collective": OPERATIONS,
            "placement": PLACEMENTS,
            "dtype": TYPES,
            "op": dict.fromkeys(OPS),
        }
        for name, allowed in known.items():
            for each in getattr(self, f"{name}s"):
                lookup(name, each, allowed)
            check_distinct(f"{name}s", getattr(self, f"{name}s"))
        check_distinct("algorithms", self.names)
        itemsize = max(TYPES[dtype].itemsize for dtype in self.dtypes)
        for name, given in (("sizes", self.sizes), ("segments", self.segments)):
            if (least := min(given, default=0)) < itemsize:
                raise ValueError(f"{name} must be at least {itemsize} B, one element, not {least} B")
        for name in self.collectives:
            if world.size < 2 and OPERATIONS[name].is_messages:
                raise ValueError(f"collective {name!r} needs at least 2 ranks, not {world.size}")
        for case in self.cases(world.size):
            check_exact(case, world.size)
        for name in self.names:
            candidate(name).check()
            if rules_of(name) is None and candidate(name).is_plan and self.algorithms:  # raises for a bad rules file
                self.check_served(name)

    def check_served(self, name: str) -> None:
        """Raise a ValueError if an algorithm has no program for this suite."""
        complaints = []
        for collective in [each for each in self.collectives if each in COLLECTIVES] or COLLECTIVES:
            try:
                find_algorithm(name, collective)
            except ValueError as error:
                complaints.append(str(error))
            else:
                return
        raise ValueError(f"{complaints[0]}; also native-best, {', '.join(CANDIDATES)}")
