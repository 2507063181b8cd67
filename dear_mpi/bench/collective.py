"""Time collectives of several makers in one run: our plans, MPI libraries, gloo."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product

from dear_mpi.bench.beside import delays
from dear_mpi.bench.case import BUS_FACTORS, Case, Conditions, Samples, row_of
from dear_mpi.bench.contestants import CONTESTANTS, DEFAULTS, LIBRARIES, calls_of, contestant
from dear_mpi.bench.data import check_exact
from dear_mpi.bench.fit import Fit, fit_network, predicted_us
from dear_mpi.bench.interleaved import Interleaved, Key, needed_bytes
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.native import OTHERS
from dear_mpi.bench.other_mpi import OtherMpi, check_other, rank_0_does
from dear_mpi.bench.peers import against_peers
from dear_mpi.bench.where import Closer, Where
from dear_mpi.collectives.algorithms.registry import ALGORITHMS
from dear_mpi.collectives.plans.tuning import default_segment, rules_of
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.memory import available_bytes
from dear_mpi.ranks.streams import Streams, open_streams
from dear_mpi.ranks.world import World
from dear_mpi.reporting.units import SEGMENT, check_distinct, format_bytes, parse_bytes, parse_sizes
from dear_mpi.training.declared import option, parsed, several

ALGORITHMS_HELP = (
    f"What to compare; the first is the baseline. Ours: {', '.join(ALGORITHMS)}, auto, FILE.py:FUNCTION, and function: "
    "a call such as all_reduce(x, comm, algorithm='auto') on a private array. Others: native (this job's MPI), mpich "
    "or openmpi (the other MPI), gloo. native-best and mpich-best are the fastest "
    "of all calls of a library, such as native-persistent"
)
BY_DEVICE = "; ".join(f"on {device}: {', '.join(names)}" for device, names in DEFAULTS.items())
SAMPLES = (11, 200)  # at least; at most in the seconds that are the default, and so many times as many in more
SECONDS = 2.0
WARM_UP = 3  # turns at every size
BLOCKS = 4  # of turns, between which a job under another MPI, or who takes turns apart, has its own


@dataclass(frozen=True)
class Contest(Closer, Conditions):
    """What a run of the benchmark measures: the flags of ``bench``. Of the algorithms the first is the baseline."""

    sizes: tuple[int, ...] = option(
        "Sizes of the buffer, with commas; 4B:64MiB stands for 4B, 16B, ... 64MiB, 4:64M:x2 for 4B, 8B, ...",
        typed=str,
        parse=lambda text: tuple(parsed("--sizes", parse_sizes, text)),
    )
    collectives: tuple[str, ...] = several(
        f"Collectives to time: {', '.join(BUS_FACTORS)}", ("all_reduce",), flag="--collective"
    )
    algorithms: tuple[str, ...] = several(ALGORITHMS_HELP, (), flag="--algorithms", shown=BY_DEVICE)
    segments: tuple[int, ...] = option(
        "Size of our largest message; several with commas.",
        (),
        shown=SEGMENT,
        flag="--segment",
        typed=str,
        parse=lambda text: tuple(parsed("--segment", parse_bytes, size) for size in text.split(",")),
    )
    seconds: float = option(
        "Seconds to spend on each size; each call is made 11 to 200 times, in more than 2 s up to 100 times for each.",
        SECONDS,
    )
    other_mpi: str = option(
        "Command that starts the other MPI, e.g. 'mpirun.mpich -f hosts'.",
        "",
        shown="from make install",
        metavar="COMMAND",
    )
    beside: bool = option(
        "Also update parameters while our collectives run, and measure how much each delays the other.",
        False,
        flag="--beside",
    )

    @property
    def names(self) -> tuple[str, ...]:
        return self.algorithms or lookup("device", self.device, DEFAULTS)

    def cases(self, ranks: int) -> list[Case]:
        """What is measured; sizes are rounded down to whole elements, or up to one; where chunks must be equal, of each
        rank."""
        conditions = {each.name: getattr(self, each.name) for each in fields(Conditions)}
        found = list[Case]()
        for collective, nbytes in product(self.collectives, self.sizes):
            grain = TYPES[self.dtype].itemsize * (ranks if COLLECTIVES[collective].addressed else 1)
            found.append(Case(collective, max(nbytes // grain, 1) * grain, **conditions))
        return list(dict.fromkeys(found))

    def check_for(self, world: World) -> None:
        self.check()
        for collective in self.collectives:
            lookup("collective", collective, BUS_FACTORS)
        itemsize = TYPES[self.dtype].itemsize
        for name, given in (("sizes", self.sizes), ("segments", self.segments)):
            if (least := min(given, default=0)) < itemsize:
                raise ValueError(f"{name} must be at least {itemsize} B, one element, not {least} B")
        if not self.seconds > 0:
            raise ValueError(f"seconds must be above 0, not {self.seconds:g}")
        if self.beside and self.device != "cpu":
            raise ValueError("beside needs the device cpu: an update on a GPU takes no processor from messages")
        self.check_device(self.device)
        check_distinct("algorithms", self.names)
        check_exact(self.cases(world.size)[0], world.size)
        for name in self.names:
            contestant(name).check()
            if contestant(name).maker in OTHERS:
                check_other(contestant(name).maker, world, self.other_mpi)
            rules_of(name)  # which may be in a bad file

    def keys(self, case: Case, ranks: int) -> list[Key]:
        """Who takes part in a case, each call of a library by its own name, and with which segments."""
        cuts = [cut for cut in sorted(self.segments) if cut < case.nbytes]
        cuts += sorted(set(self.segments) - set(cuts))[:1]
        names = dict.fromkeys(call for name in self.names for call in calls_of(name, case, ranks))
        return [(name, cut) for name in names for cut in (cuts if contestant(name).segments else cuts[-1:])]


@dataclass(frozen=True)
class Report:
    """What was measured, of whom (``names``); ``left_out``: why others were not, by collective and size."""

    rows: list[Row]
    fit: Fit | None
    names: tuple[str, ...]
    left_out: dict[str, dict[str, list[int]]]
    where: Where = field(default_factory=Where)


def bench(contest: Contest, world: World, progress: Callable[[str], object] = lambda note: None) -> Report:
    """Collective: a row per size and contestant, in the order of the contest.

    Raises:
        ArgumentError: something is not allowed, or a contestant cannot be had; on all ranks alike.
    """
    opened: list[Streams] = []
    contest = replace(contest, segments=contest.segments or (default_segment(world.transport.hosts),))

    def facts() -> Mapping[str, object]:
        contest.check_for(world)
        opened.append(open_streams(contest.device))
        return asdict(contest)

    agree(world.transport, "bench", facts)
    streams, rows = opened[0], list[Row]()
    left_out: dict[str, dict[str, list[int]]] = {}
    with ExitStack() as stack, streams.compute.use():
        check_plans(contest, world, streams)
        libraries, others = dict[str, str](), dict[str, OtherMpi]()
        for name in contest.names:
            who = contestant(name)
            if who.maker in OTHERS and who.maker not in others:
                other = stack.enter_context(closing(OtherMpi(who.maker, world, contest.other_mpi)))
                others[who.maker], libraries[who.maker] = other, other.library
            elif who.session is not None and world.transport.native is not None:
                libraries[name] = stack.enter_context(who.session(world))
        room = float(min(world.transport.gather_values(available_bytes() / world.ranks_here)))
        too_large = {"all": f"more memory than the {room / 2**30:.3g} GiB that each rank can have"}
        cases = contest.cases(world.size)
        for case in cases:
            progress(f"{case.collective}, {format_bytes(case.nbytes)}")
            fits = needed_bytes(case, contest.names, world.transport.hosts) <= room
            samples, missing = at_size(case, contest, world, streams, others) if fits else ({}, too_large)
            for name, why in missing.items():
                left_out.setdefault(f"{name}: {why}", {}).setdefault(case.collective, []).append(case.nbytes)
            for (name, cut), found in samples.items():
                library = libraries.get(name) or libraries.get(contestant(name).maker, world.transport.name)
                rows.append(row_of(case, name, found, backend=library, hosts=world.ranks_per_host, segment_bytes=cut))
        if not rows:
            raise ArgumentError(f"bench: nothing can be measured here: {'; '.join(left_out)}")
        measured = {(row.collective, row.bytes) for row in rows}
        keys = {
            case: contest.keys(case, world.size) for case in cases if (case.collective, case.used_bytes) in measured
        }
        where = contest.where(keys, world, streams, contest.seconds)
    fit, models_us = rank_0_does(world, lambda: modelled(rows, world.transport))
    rows = [replace(row, model_us=us) for row, us in zip(against_peers(rows), models_us, strict=True)]
    return Report(rows, fit, contest.names, left_out, where)


def modelled(rows: Sequence[Row], transport: Transport) -> tuple[Fit | None, list[float | None]]:
    """The network that explains the rows, and what it says of each."""
    where = transport.hosts, transport.rates
    fit = fit_network(rows, *where)
    return fit, [None if fit is None else predicted_us(row, fit, *where) for row in rows]


def check_plans(contest: Contest, world: World, streams: Streams) -> None:
    """Collective: an ArgumentError, before all the work, if an algorithm that was asked for serves no collective."""
    plans = [(name, min(contest.segments)) for name in contest.algorithms if contestant(name).is_plan]
    nbytes = world.size * TYPES[contest.dtype].itemsize
    least = replace(contest.cases(world.size)[0], nbytes=nbytes, placement="in", memory="private")
    tried = [Interleaved(replace(least, collective=each), plans, world, streams) for each in contest.collectives]
    for each in tried:
        each.free()
    for name, _ in plans:
        if all(name in each.left_out for each in tried):
            others = (*LIBRARIES, "native-best", *(other for other, who in CONTESTANTS.items() if not who.is_library))
            raise ArgumentError(f"{tried[0].left_out[name]}; the benchmark also has {', '.join(others)}")


def at_size(
    case: Case, contest: Contest, world: World, streams: Streams, others: Mapping[str, OtherMpi]
) -> tuple[dict[Key, Samples], dict[str, str]]:
    """All contestants, taking turns: their samples, in the order of the rows, and why some are missing."""
    keys = contest.keys(case, world.size)
    interleaved = Interleaved(case, [key for key in keys if contestant(key[0]).maker not in others], world, streams)
    theirs = {library: dict(key for key in keys if contestant(key[0]).maker == library) for library in others}
    left_out = interleaved.left_out

    def run(turns: int) -> dict[Key, Samples]:
        found: dict[Key, Samples] = {}
        for library, cuts in theirs.items():
            samples, missing = others[library].run(case, turns, list(cuts))
            found |= {(call, cuts[call]): each for call, each in samples.items()}
            left_out.update(missing)
        return interleaved.run(turns) | found

    run(1)  # a job under another MPI prepares its arrays
    begin = time.perf_counter()
    run(WARM_UP - 1)
    turn_s = max(world.transport.gather_values(time.perf_counter() - begin)) / WARM_UP
    most = SAMPLES[1] * max(contest.seconds / SECONDS, 1)
    turns = int(min(max(contest.seconds / turn_s, SAMPLES[0]), most))
    apart = others or any(contestant(name).session for name in contest.names)
    blocks = [turns // BLOCKS + (number < turns % BLOCKS) for number in range(BLOCKS)] if apart else [turns]
    begin = time.perf_counter()
    found = [run(turns) for turns in blocks]
    turn_s = max(world.transport.gather_values(time.perf_counter() - begin)) / turns
    plans = {key: ready for key, ready in interleaved.ready.items() if contest.beside and ready[0].chosen}
    beside = {key: delays(*ready, world.transport, turns) for key, ready in plans.items()}
    interleaved.free()
    names = [name for name, _ in keys]
    return {
        key: replace(sum((block[key] for block in found[1:]), found[0][key]), delays=beside.get(key, {}), turn_s=turn_s)
        for key in sorted(found[0], key=lambda key: (names.index(key[0]), key[1]))
    }, left_out
