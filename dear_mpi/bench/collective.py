"""Time collectives of several makers in one run: our plans, MPI libraries, gloo, a prototype written by hand."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from dear_mpi.bench.backends import BACKENDS, DEFAULTS, has_segments, open_backend
from dear_mpi.bench.case import BUS_FACTORS, CADENCES, MEMORIES, PLACEMENTS, CannotRun, Case, Row, Samples, row_of
from dear_mpi.bench.data import COMBINE, check_exact
from dear_mpi.bench.fit import Fit, fit_network, predicted_us
from dear_mpi.bench.interleaved import Interleaved, Key
from dear_mpi.bench.native import LIBRARIES, calls_of, mpi_of
from dear_mpi.bench.other_mpi import OTHERS, OtherMpi, check_other, rank_0_does
from dear_mpi.bench.prepared import Setup
from dear_mpi.bench.summary import against_peers
from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.streams import Streams, open_streams
from dear_mpi.ranks.world import World
from dear_mpi.reporting.distinct import check_distinct
from dear_mpi.reporting.units import format_bytes

SAMPLES = (11, 200)
WARM_UP = 3  # turns at every size
BLOCKS = 4  # of turns, between which a job under another MPI has its turns


@dataclass(frozen=True)
class Settings:
    """What a run of the benchmark measures."""

    sizes: tuple[int, ...]  # bytes of the full buffer
    collectives: tuple[str, ...] = ("all_reduce",)
    algorithms: tuple[str, ...] = ()  # the backends, the baseline first; the device's default ones if empty
    placement: str = "in"  # of place: in or out
    dtype: str = "fp32"
    op: str = "sum"
    segments: tuple[int, ...] = ()  # largest messages of our plans, one backend each; what suits the hosts if empty
    device: str = "cpu"
    memory: str = "auto"  # of our plans: shared or private for all, or what each would have in a program
    cadence: str = "isolated"  # or streaming
    seconds: float = 2.0  # how long to measure each size; decides the number of samples
    other_mpi: str = ""  # the launcher of the other MPI
    beside: bool = False  # whether to measure what an update beside them does to our plans

    @property
    def names(self) -> tuple[str, ...]:
        return self.algorithms or lookup("device", self.device, DEFAULTS)

    def cases(self) -> Iterator[Case]:
        for collective in self.collectives:
            for nbytes in self.sizes:
                how = self.dtype, self.op, self.placement, self.device, self.memory, self.cadence
                yield Case(collective, nbytes, *how)

    def check(self, world: World) -> None:
        """A ValueError if a setting is not allowed."""
        for collective in self.collectives:
            lookup("collective", collective, BUS_FACTORS)
        lookup("placement", self.placement, PLACEMENTS)
        lookup("op", self.op, COMBINE)
        lookup("memory", self.memory, dict.fromkeys(MEMORIES))
        lookup("cadence", self.cadence, dict.fromkeys(CADENCES))
        itemsize = lookup("dtype", self.dtype, DTYPES).itemsize
        for name, given in (("sizes", self.sizes), ("segments", self.segments)):
            if (least := min(given, default=0)) < itemsize:
                raise ValueError(f"{name} must be at least {itemsize} B, one element, not {least} B")
        if not self.seconds > 0:
            raise ValueError(f"seconds must be above 0, not {self.seconds:g}")
        lookup("device", self.device, DEFAULTS)
        if self.beside and self.device != "cpu":
            raise ValueError("beside needs the device cpu: an update on a GPU takes no processor from messages")
        if "" in self.names:
            raise ValueError(f"algorithms must be names with commas between them, not {','.join(self.names)!r}")
        check_distinct("algorithms", self.names)
        check_exact(next(self.cases()), world.size)
        for name in self.names:
            if mpi_of(name) in OTHERS:
                check_other(str(mpi_of(name)), world, self.other_mpi)
            elif name in BACKENDS:
                BACKENDS[name].check()
        self.keys(next(self.cases()), world.size)  # a file of rules may be bad

    def expanded(self, case: Case, ranks: int) -> list[str]:
        """The backends in a case, each call of a library by its own name."""
        return list(dict.fromkeys(call for name in self.names for call in calls_of(name, case, ranks)))

    def keys(self, case: Case, ranks: int) -> list[Key]:
        """The backends of this job in a case, with each of the segments that make a difference."""
        cuts = [cut for cut in sorted(self.segments) if cut < case.nbytes]
        cuts += sorted(set(self.segments) - set(cuts))[:1]
        names = (name for name in self.expanded(case, ranks) if mpi_of(name) not in OTHERS)
        return [(name, cut) for name in names for cut in (cuts if has_segments(name) else cuts[-1:])]


@dataclass(frozen=True)
class Report:
    """What was measured, of which backends (``names``); ``left_out``: why others were not, by collective and size."""

    rows: list[Row]
    fit: Fit | None
    names: tuple[str, ...]
    left_out: dict[str, dict[str, list[int]]] = field(default_factory=dict)


def bench(settings: Settings, world: World, progress: Callable[[str], object] = lambda note: None) -> Report:
    """Collective: a row per size and backend, in the order of the settings.

    Raises:
        ArgumentError: a setting is not allowed, or a backend cannot be had; on all ranks alike.
    """
    opened: list[Streams] = []
    settings = replace(settings, segments=settings.segments or (default_segment(world.transport.hosts),))

    def facts() -> Mapping[str, object]:
        settings.check(world)
        opened.append(open_streams(settings.device))
        return asdict(settings)

    agree(world.transport, "bench", facts)
    streams, rows = opened[0], list[Row]()
    left_out: dict[str, dict[str, list[int]]] = {}
    with ExitStack() as stack, streams.compute.use():
        check_plans(settings, world, streams)
        libraries, others = dict[str, str](), dict[str, OtherMpi]()
        for name in settings.names:
            backend, library = BACKENDS.get(name), mpi_of(name)
            if library in OTHERS and library not in others:
                others[library] = stack.enter_context(closing(OtherMpi(library, world, settings.other_mpi)))
                libraries[library] = others[library].library
            elif backend and backend.session and world.transport.native is not None:
                libraries[name] = stack.enter_context(backend.session(world))
        for case in settings.cases():
            progress(f"{case.collective}, {format_bytes(case.nbytes)}")
            samples, missing = at_size(case, settings, world, streams, others)
            for name, why in missing.items():
                left_out.setdefault(f"{name}: {why}", {}).setdefault(case.collective, []).append(case.nbytes)
            order = settings.expanded(case, world.size)
            for name, segment_bytes in sorted(samples, key=lambda key: (order.index(key[0]), key[1])):
                who, found = libraries.get(mpi_of(name) or name, world.transport.name), samples[name, segment_bytes]
                hosts = world.ranks_per_host
                rows.append(row_of(case, name, found, backend=who, hosts=hosts, segment_bytes=segment_bytes))
    if not rows:
        raise ArgumentError(f"bench: nothing can be measured here: {'; '.join(left_out)}")
    rows, fit = rank_0_does(world, lambda: modelled(against_peers(rows), world.transport.hosts))
    return Report(rows, fit, settings.names, left_out)


def modelled(rows: list[Row], hosts: Sequence[int]) -> tuple[list[Row], Fit | None]:
    fit = fit_network(rows, hosts)
    return rows if fit is None else [replace(row, model_us=predicted_us(row, fit, hosts)) for row in rows], fit


def check_plans(settings: Settings, world: World, streams: Streams) -> None:
    """Collective: an ArgumentError, before all the work, if an algorithm that was asked for serves no collective."""
    x = streams.put(np.zeros(world.size, DTYPES[settings.dtype]))
    for name in (name for name in settings.algorithms if name not in BACKENDS and mpi_of(name) is None):
        faults = []
        for collective in settings.collectives:
            case = Case(collective, 0, settings.dtype, settings.op)
            try:
                open_backend(name, Setup(case, x, None, world.transport, min(settings.segments))).free()
            except CannotRun as error:
                faults.append(error)
        if len(faults) == len(settings.collectives):
            others = (*LIBRARIES, "native-best", *(name for name in BACKENDS if mpi_of(name) is None))
            raise ArgumentError(f"{faults[0]}; the benchmark also has {', '.join(others)}")


def at_size(
    case: Case, settings: Settings, world: World, streams: Streams, others: Mapping[str, OtherMpi]
) -> tuple[dict[Key, Samples], dict[str, str]]:
    """All backends, taking turns: their samples, and why some are missing."""
    interleaved = Interleaved(case, settings.keys(case, world.size), world, streams)
    names = settings.expanded(case, world.size)
    calls = {library: [name for name in names if mpi_of(name) == library] for library in others}
    left_out, cut = interleaved.left_out, settings.segments[0]

    def run(turns: int) -> dict[Key, Samples]:
        found: dict[Key, Samples] = {}
        for library, other in others.items():
            asked = {name: name.replace(library, "native", 1) for name in calls[library] if name not in left_out}
            answers = other.run(case, turns, list(asked.values()))
            for name, answer in ((name, answers[call]) for name, call in asked.items()):
                if isinstance(answer, str):
                    left_out[name] = answer
                else:
                    found[name, cut] = answer
        return interleaved.run(turns) | found

    run(1)  # a job under another MPI prepares its arrays
    begin = time.perf_counter()
    run(WARM_UP - 1)
    turn_s = max(world.transport.gather_values(time.perf_counter() - begin)) / WARM_UP
    turns = int(min(max(settings.seconds / turn_s, SAMPLES[0]), SAMPLES[1]))
    blocks = [turns // BLOCKS + (number < turns % BLOCKS) for number in range(BLOCKS)] if others else [turns]
    found = [run(turns) for turns in blocks]
    delays = interleaved.delays(turns) if settings.beside else {}
    interleaved.free()
    summed = {key: sum((block[key] for block in found[1:]), found[0][key]) for key in found[0]}
    return {key: replace(samples, delays=delays.get(key, {})) for key, samples in summed.items()}, left_out
