"""What a run of the benchmark measures: its flags, the cases they stand for, and who takes part in each."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import product

from dear_mpi.bench.arrivals.arrival import Arrivals
from dear_mpi.bench.case import OPS, PLACEMENTS, Case, Conditions
from dear_mpi.bench.data import check_exact
from dear_mpi.bench.inside.where import Closer
from dear_mpi.bench.makers.contestants import DEFAULTS, calls_of, contestant
from dear_mpi.bench.operations import OPERATIONS
from dear_mpi.bench.timing.interleaved import Key
from dear_mpi.bench.timing.pace import Pace
from dear_mpi.collectives.algorithms.registry import ALGORITHMS
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.world import World
from dear_mpi.reporting.units import SEGMENT, above_zero, check_distinct, parse_bytes, parse_sizes
from dear_mpi.training.declared import option, parsed, several

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
    """
    >>> numbers("2,4")
    (2, 4)
    """
    return tuple(above_zero("a number of ranks", each) for each in text.split(","))


@dataclass(frozen=True)
class Contest(Closer, Pace, Arrivals, Conditions):
    """What a run of the benchmark measures: the flags of ``bench``. Of the algorithms the first is the baseline."""

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

    @property
    def names(self) -> tuple[str, ...]:
        return self.algorithms or lookup("device", self.device, DEFAULTS)

    @property
    def in_blocks(self) -> bool:
        """Whether not all take turns call by call: some arrive late, or have threads."""
        return bool(self.arrival) or any(contestant(name).session for name in self.names)

    def cases(self, ranks: int) -> list[Case]:
        """What is measured, each case once."""
        conditions = {each.name: getattr(self, each.name) for each in fields(Conditions)}
        chosen = product(self.collectives, self.dtypes, self.ops, self.placements, self.sizes)
        return list(
            dict.fromkeys(
                Case.of(name, nbytes, ranks, {**conditions, "dtype": dtype, "op": op, "placement": placement})
                for name, dtype, op, placement, nbytes in chosen
            )
        )

    def points(self, ranks: int) -> int:
        """How many cases there are, on all numbers of ranks of a job of so many."""
        return sum(len(self.cases(each)) for each in self.ranks or (ranks,))

    def check_for(self, world: World) -> None:
        """Raise a ValueError if something cannot be measured on these ranks."""
        self.check()
        self.check_pace()
        self.check_lists(world.size)
        fewest, most = (of(self.ranks, default=world.size) for of in (min, max))
        for collective in self.collectives:
            if fewest < (least := OPERATIONS[collective].least_ranks):
                raise ValueError(f"collective {collective!r} needs at least {least} ranks, not {fewest}")
        self.check_device(self.device)
        self.check_arrivals(self.cadence, fewest)
        if self.arrival and (pairs := [each for each in self.collectives if OPERATIONS[each].pair]):
            raise ValueError(f"arrival is of collectives, which all ranks take part in, not of {', '.join(pairs)}")
        for case in self.cases(most):
            check_exact(case, most)
        for name in self.names:
            contestant(name).check()
            rules_of(name)  # which may be in a bad file

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
        """Who takes part in a case, each call of a library by its own name, and with which segments: where those make
        no difference to it, with the same in each case."""
        cuts = [cut for cut in sorted(self.segments) if cut < case.nbytes]
        cuts += sorted(set(self.segments) - set(cuts))[:1]
        names = dict.fromkeys(call for name in self.names for call in calls_of(name, case, ranks))
        whole = max(self.segments)
        return [(name, cut) for name in names for cut in (cuts if contestant(name).segments else [whole])]
