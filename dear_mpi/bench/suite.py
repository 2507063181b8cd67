"""Define a suite: the flags of a benchmark run, their cases, and each case's candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product

from dear_mpi.bench.arrivals import Arrivals
from dear_mpi.bench.backends import DEFAULTS, calls_of, candidate
from dear_mpi.bench.case import OPERATIONS, OPS, PLACEMENTS, Case, Conditions, Samples, row_of
from dear_mpi.bench.data import check_exact
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.saved import Run, check_comparable, read_runs
from dear_mpi.bench.turns import Key, Pace
from dear_mpi.collectives.algorithms.registry import ALGORITHMS
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.world import World, ranks_per_host
from dear_mpi.reporting.units import SEGMENT, above_zero, check_distinct, parse_bytes, parse_sizes
from dear_mpi.training.declared import option, parsed, several

MOST_TESTS = 10**6
ON_HOST = {"steps": "on a GPU a call only launches what combines and copies", "overlap": "the compute is the host's"}
ALGORITHMS_HELP = (
    f"What to compare; the first is the baseline. Ours: {', '.join(ALGORITHMS)}, auto, FILE.py:FUNCTION, and function: "
    "a call such as all_reduce(x, comm, algorithm='auto') on a private array. Others: native (this job's MPI), gloo. "
    "native-best is the fastest of all calls of MPI, such as native-persistent"
)
BY_DEVICE = "; ".join(f"on {device}: {', '.join(names)}" for device, names in DEFAULTS.items())
RANKS = (
    "Numbers of ranks to measure on, with commas: the first ranks of the job take part, and the others sleep. Where "
    "hosts have several ranks, the first ranks fill the first hosts, unless the launcher was told otherwise."
)


def numbers(text: str) -> tuple[int, ...]:
    """Parse numbers with commas.

    >>> numbers("2,4")
    (2, 4)
    """
    return tuple(above_zero("a number of ranks", each) for each in text.split(","))


@dataclass(frozen=True)
class Suite(Pace, Arrivals, Conditions):
    """The flags of ``bench``. The first algorithm is the baseline."""

    sizes: tuple[int, ...] = option(
        "Sizes of the buffer, with commas; 4B:64MiB stands for 4B, 16B, ... 64MiB, 4:64M:x2 for 4B, 8B, ...",
        typed=str,
        parse=lambda text: tuple(parsed("--sizes", parse_sizes, text)),
    )
    collectives: tuple[str, ...] = several(
        f"Collectives and messages to time: {', '.join(OPERATIONS)}", ("all_reduce",), flag="--collective"
    )
    algorithms: tuple[str, ...] = several(ALGORITHMS_HELP, (), flag="--algorithms", shown=BY_DEVICE)
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
    ranks: tuple[int, ...] = option(
        RANKS, (), shown="all", typed=str, parse=lambda text: parsed("--ranks", numbers, text)
    )

    steps: bool = option(
        "Also record our plans at the largest size: where the time goes, step by step.", False, flag="--steps"
    )
    overlap: bool = option(
        "Also run our plans and MPI's non-blocking call during compute, and report how much of them is hidden.",
        False,
        flag="--overlap",
    )
    tests: int = option(
        "With --overlap: calls of advance(), or of MPI_Test, during the compute.", 16, least=0, most=MOST_TESTS
    )

    @property
    def names(self) -> tuple[str, ...]:
        return self.algorithms or lookup("device", self.device, DEFAULTS)

    @property
    def in_blocks(self) -> bool:
        """Return whether candidates alternate in blocks of calls, because ranks arrive late or a backend has
        threads.
        """
        return bool(self.arrival) or any(candidate(name).session for name in self.names)

    def cases(self, ranks: int) -> list[Case]:
        """Return all cases, each once."""
        conditions = {each.name: getattr(self, each.name) for each in fields(Conditions)}
        chosen = product(self.collectives, self.dtypes, self.ops, self.placements, self.sizes)
        return list(
            dict.fromkeys(
                Case.of(name, nbytes, ranks, {**conditions, "dtype": dtype, "op": op, "placement": placement})
                for name, dtype, op, placement, nbytes in chosen
            )
        )

    def points(self, ranks: int) -> int:
        """Return the number of cases over all numbers of ranks of a job of ``ranks`` ranks."""
        return sum(len(self.cases(each)) for each in self.ranks or (ranks,))

    def check_for(self, world: World) -> None:
        """Raise a ValueError if these ranks cannot measure something."""
        self.check()
        self.check_pace()
        self.check_lists(world.size)
        fewest, most = (of(self.ranks, default=world.size) for of in (min, max))
        for collective in self.collectives:
            if fewest < (least := OPERATIONS[collective].least_ranks):
                raise ValueError(f"collective {collective!r} needs at least {least} ranks, not {fewest}")
        for name, why in ON_HOST.items():
            if getattr(self, name) and self.device != "cpu":
                raise ValueError(f"{name} needs the device cpu: {why}")
        self.check_arrivals(self.cadence, fewest)
        if self.arrival and (pairs := [each for each in self.collectives if OPERATIONS[each].pair]):
            raise ValueError(f"arrival is of collectives, which all ranks take part in, not of {', '.join(pairs)}")
        for case in self.cases(most):
            check_exact(case, most)
        for name in self.names:
            candidate(name).check()
            rules_of(name)  # raises for a bad rules file

    def check_lists(self, ranks: int) -> None:
        known: dict[str, Mapping[str, object]]
        known = {"collective": OPERATIONS, "placement": PLACEMENTS, "dtype": TYPES, "op": dict.fromkeys(OPS)}
        for name, allowed in known.items():
            for each in getattr(self, f"{name}s"):
                lookup(name, each, allowed)
            check_distinct(f"{name}s", getattr(self, f"{name}s"))
        itemsize = max(TYPES[dtype].itemsize for dtype in self.dtypes)
        for name, given in (("sizes", self.sizes), ("segments", self.segments)):
            if (least := min(given, default=0)) < itemsize:
                raise ValueError(f"{name} must be at least {itemsize} B, one element, not {least} B")
        if self.ranks and max(self.ranks) > ranks:
            raise ValueError(f"ranks must be at most {ranks}, the ranks of this job, not {max(self.ranks)}")
        check_distinct("algorithms", self.names)
        check_distinct("ranks", self.ranks)

    def keys(self, case: Case, ranks: int) -> list[Key]:
        """Return a case's candidates and their segments, with each MPI call by its name.

        Candidates without segments get the largest one in all cases.
        """
        cuts = [cut for cut in sorted(self.segments) if cut < case.nbytes]
        cuts += sorted(set(self.segments) - set(cuts))[:1]
        names = dict.fromkeys(call for name in self.names for call in calls_of(name, case, ranks))
        whole = max(self.segments)
        return [(name, cut) for name in names for cut in (cuts if candidate(name).segments else [whole])]


THIS_RUN = "this run"


def baseline_before(files: Sequence[str], suite: Suite, world: World) -> list[Run]:
    """Collective: read the baseline's launches, before a run.

    Raises:
        ArgumentError: they cannot be read, or cannot be compared with each other or with this run.
    """

    def read() -> list[Run]:
        runs = read_runs("--baseline", files)
        for other in (*runs[1:], planned(suite, world, runs[0].rows)):
            check_comparable(runs[0], other)
        return runs

    return said_by_rank_0(world.transport, "baseline", read)


def planned(suite: Suite, world: World, before: Sequence[Row]) -> Run:
    """Return a run with all points that this run may have; its times are made up.

    Buffers' memory, samples' start and ``auto``'s segments are not known yet, so all values in earlier rows count as
    possible.
    """
    found = {(row.memory, row.start) for row in before}
    name, hosts = world.transport.name, world.transport.hosts
    rows = [
        row_of(case, who, instant(ranks, *how), backend=name, hosts=ranks_per_host(hosts[:ranks]), segment_bytes=size)
        for ranks in suite.ranks or (world.size,)
        for case in suite.cases(ranks)
        for who, cut in suite.keys(case, ranks)
        for size in segments(who, cut, before)
        for how in found
    ]
    return Run(THIS_RUN, rows)


def segments(name: str, given: int, before: Sequence[Row]) -> set[int]:
    """Return a candidate's possible segments: the given one, unless a table of rules has others."""
    if candidate(name).segments or not candidate(name).is_plan:
        return {given}
    return {row.segment_bytes for row in before if row.algorithm == name} or {given}


def instant(ranks: int, memory: str, start: str) -> Samples:
    return Samples([[1e-6]] * ranks, memory=memory, start=start)
