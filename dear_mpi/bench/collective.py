"""Time collectives of several makers in one run: our plans, MPI libraries, gloo, a prototype written by hand."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from dear_mpi.bench.backends import BACKENDS, DEFAULTS, Setup, has_segments, open_backend
from dear_mpi.bench.case import BUS_FACTORS, MEMORIES, PLACEMENTS, CannotRun, Case, Row, Samples, row_of
from dear_mpi.bench.data import COMBINE, check_exact
from dear_mpi.bench.fit import Fit, fit_network, predicted_us
from dear_mpi.bench.interleaved import Interleaved, Key
from dear_mpi.bench.other_mpi import OTHERS, OtherMpi, check_other, rank_0_does
from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.streams import Streams, open_streams
from dear_mpi.ranks.world import World
from dear_mpi.reporting.units import format_bytes

__all__ = ["Report", "Settings", "bench"]

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
    memory: str = "shared"  # which ranks of a host can reach, or private
    seconds: float = 2.0  # how long to measure each size; decides the number of samples
    other_mpi: str = ""  # the launcher of the other MPI

    @property
    def names(self) -> tuple[str, ...]:
        return self.algorithms or lookup("device", self.device, DEFAULTS)

    def cases(self) -> Iterator[Case]:
        for collective in self.collectives:
            for nbytes in self.sizes:
                yield Case(collective, nbytes, self.dtype, self.op, self.placement, self.device, self.memory)

    def check(self, world: World) -> None:
        """A ValueError if a setting is not allowed."""
        for collective in self.collectives:
            lookup("collective", collective, BUS_FACTORS)
        lookup("placement", self.placement, PLACEMENTS)
        lookup("op", self.op, COMBINE)
        lookup("memory", self.memory, dict.fromkeys(MEMORIES))
        itemsize = lookup("dtype", self.dtype, DTYPES).itemsize
        for name, given in (("sizes", self.sizes), ("segments", self.segments)):
            if (least := min(given, default=0)) < itemsize:
                raise ValueError(f"{name} must be at least {itemsize} B, one element, not {least} B")
        if not self.seconds > 0:
            raise ValueError(f"seconds must be above 0, not {self.seconds:g}")
        lookup("device", self.device, DEFAULTS)
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"algorithms must be different ones, not {', '.join(self.names)}")
        check_exact(next(self.cases()), world.size)
        for name in self.names:
            if name in OTHERS:
                check_other(name, world, self.other_mpi)
            elif name in BACKENDS:
                BACKENDS[name].check()
        self.keys(next(self.cases()))  # a file of rules may be bad

    def keys(self, case: Case) -> list[Key]:
        """The backends of this job in a case, with each of the segments that make a difference."""
        cuts = [cut for cut in sorted(self.segments) if cut < case.nbytes]
        cuts += sorted(set(self.segments) - set(cuts))[:1]
        names = (name for name in self.names if name not in OTHERS)
        return [(name, cut) for name in names for cut in (cuts if has_segments(name) else cuts[-1:])]


@dataclass(frozen=True)
class Report:
    """What was measured; ``left_out``: who and why, in which collectives, at which sizes."""

    rows: list[Row]
    fit: Fit | None
    memory: str
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
            entry = BACKENDS.get(name)
            if name in OTHERS:
                others[name] = stack.enter_context(closing(OtherMpi(name, world, settings.other_mpi)))
                libraries[name] = others[name].library
            elif entry and entry.session and world.transport.native is not None:
                libraries[name] = stack.enter_context(entry.session(world))
        for case in settings.cases():
            progress(f"{case.collective}, {format_bytes(case.nbytes)}")
            samples, missing = at_size(case, settings, world, streams, others)
            for name, why in missing.items():
                left_out.setdefault(f"{name}: {why}", {}).setdefault(case.collective, []).append(case.nbytes)
            for name, segment_bytes in sorted(samples, key=lambda key: (settings.names.index(key[0]), key[1])):
                backend = libraries.get(name, world.transport.name)
                found = samples[name, segment_bytes]
                rows.append(row_of(case, name, found, backend=backend, ranks=world.size, segment_bytes=segment_bytes))
    if not rows:
        raise ArgumentError(f"bench: nothing can be measured here: {'; '.join(left_out)}")
    rows, fit = rank_0_does(world, lambda: modelled(rows, world.transport.hosts))
    return Report(rows, fit, settings.memory, left_out)


def modelled(rows: list[Row], hosts: Sequence[int]) -> tuple[list[Row], Fit | None]:
    fit = fit_network(rows, hosts)
    return rows if fit is None else [replace(row, model_us=predicted_us(row, fit, hosts)) for row in rows], fit


def check_plans(settings: Settings, world: World, streams: Streams) -> None:
    """Collective: an ArgumentError, before all the work, if an algorithm that was asked for serves no collective."""
    x = streams.put(np.zeros(world.size, DTYPES[settings.dtype]))
    for name in (name for name in settings.algorithms if name not in (*BACKENDS, *OTHERS)):
        faults = []
        for collective in settings.collectives:
            case = Case(collective, 0, settings.dtype, settings.op)
            try:
                open_backend(name, Setup(case, x, None, world.transport, min(settings.segments))).free()
            except CannotRun as error:
                faults.append(error)
        if len(faults) == len(settings.collectives):
            raise ArgumentError(f"{faults[0]}; the benchmark also has {', '.join((*BACKENDS, *OTHERS))}")


def at_size(
    case: Case, settings: Settings, world: World, streams: Streams, others: Mapping[str, OtherMpi]
) -> tuple[dict[Key, Samples], dict[str, str]]:
    """All backends, taking turns: their samples, and why some are missing."""
    interleaved = Interleaved(case, settings.keys(case), world, streams)

    def run(turns: int) -> dict[Key, Samples]:
        answers = {name: other.run(case, turns) for name, other in others.items() if name not in interleaved.left_out}
        interleaved.left_out |= {name: answer for name, answer in answers.items() if isinstance(answer, str)}
        theirs = {(name, settings.segments[0]): each for name, each in answers.items() if isinstance(each, Samples)}
        return interleaved.run(turns) | theirs

    run(1)  # a job under another MPI prepares its arrays
    begin = time.perf_counter()
    run(WARM_UP - 1)
    turn_s = max(world.transport.gather_values(time.perf_counter() - begin)) / WARM_UP
    turns = int(min(max(settings.seconds / turn_s, SAMPLES[0]), SAMPLES[1]))
    blocks = [turns // BLOCKS + (number < turns % BLOCKS) for number in range(BLOCKS)] if others else [turns]
    found = [run(turns) for turns in blocks]
    interleaved.free()
    return {key: sum((block[key] for block in found[1:]), found[0][key]) for key in found[0]}, interleaved.left_out
