"""Find candidates by their names: MPI calls, gloo, functions below, algorithms of ``make_plan``."""

import importlib.util
import os
import platform
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from dear_mpi.bench.case import CannotRun, Case, Prepared, Setup
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.native import FORMS, Call, native, one_by_one
from dear_mpi.collectives.plans import functions
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.program import COLLECTIVES, chunk_bounds
from dear_mpi.collectives.transports.transport import StagedTransport
from dear_mpi.kernels.array import Array, library_of, synchronize
from dear_mpi.kernels.calls import copier
from dear_mpi.kernels.slab import Slab
from dear_mpi.ranks.world import World
from dear_mpi.reporting.units import format_bytes

GLOO_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise ValueError("algorithm 'gloo' needs torch: pip install torch==2.13.0 (our extra 'gloo')")


@contextmanager
def gloo_group(world: World) -> Iterator[str]:
    """Collective: open torch's default process group at a TCP port of rank 0; yields its name."""
    torch, distributed = map(import_module, ("torch", "torch.distributed"))
    hosts = world.transport.gather_values(platform.node())
    port = int(os.environ.get("MASTER_PORT", 0))
    listener = socket.create_server((meeting_place(hosts), port)) if world.rank == 0 else None
    address, port = world.transport.gather_values(listener and listener.getsockname())[0]
    master = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()} if listener else {}
    store = distributed.TCPStore(address, port, world.size, **master)
    distributed.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
    try:
        yield f"gloo of torch {torch.__version__}"
    finally:
        distributed.destroy_process_group()


def meeting_place(hosts: Sequence[str]) -> str:
    """Return an address of rank 0's host for the others; ``MASTER_ADDR`` wins."""
    others = [host for host in hosts if host != hosts[0]]
    if "MASTER_ADDR" in os.environ or not others:
        return os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.connect((others[0], 9))  # sends nothing; the system picks the interface
        return str(probe.getsockname()[0])


def gloo(setup: Setup) -> Prepared:
    case, x, out, rank, ranks = setup.case, setup.x, setup.out, setup.transport.rank, setup.transport.size
    if library_of(x) != "numpy":
        raise CannotRun("takes only host memory")
    if case.reduces and case.op not in GLOO_OPS:
        raise CannotRun(f"cannot compute op {case.op}")
    swaps, sharded = case.collective == "all_to_all", case.collective in ("all_gather", "reduce_scatter")
    if sharded and case.count % ranks:
        raise CannotRun("needs equal chunks")
    if not sharded and swaps == (out is None):
        raise CannotRun(f"works only {'out of' if swaps else 'in'} place")
    torch, distributed = map(import_module, ("torch", "torch.distributed"))

    def tensor(array: Array) -> Any:  # bits: torch does not know NumPy's bf16
        return (
            torch.from_numpy(array.view("i2")).view(torch.bfloat16) if case.dtype == "bf16" else torch.from_numpy(array)
        )

    source, target = tensor(x), tensor(x if out is None else out)
    shard = slice(*chunk_bounds(case.count, ranks, rank)) if out is None else slice(None)
    op = getattr(distributed.ReduceOp, GLOO_OPS[case.op]) if case.reduces else None
    # Names until torch 2.12; later versions warn.
    gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
    scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)
    calls: dict[str, Call] = {
        "all_reduce": partial(distributed.all_reduce, source, op),
        "broadcast": partial(distributed.broadcast, source, 0),
        "reduce": partial(distributed.reduce, source, 0, op),
        "all_to_all": partial(distributed.all_to_all_single, target, source),
        "all_gather": partial(gather, target, source[shard]),
        "reduce_scatter": partial(scatter, target[shard], source, op),
    }
    return Prepared(calls[case.collective])


def host_copies(setup: Setup) -> Prepared:
    if setup.out is not None:
        raise CannotRun("works only in place")
    host = Slab.pinned(setup.x).empty(setup.x.size, setup.x.dtype)
    plan = replace(setup, x=host).plan("ring")
    come, go = copier(host, setup.x), copier(setup.x, host)
    return Prepared(one_by_one([come, partial(synchronize, setup.x), plan, go]), plan.free)


def function(setup: Setup) -> Prepared:
    """Call by function on a private array; each call looks up its plan."""
    options = {"op": setup.case.op} if setup.case.reduces else {}
    call = getattr(functions, setup.case.collective)
    return Prepared(partial(call, setup.x, setup.transport, out=setup.out, algorithm="auto", **options))


def staged(setup: Setup) -> Prepared:
    if setup.case.device == "cpu":
        raise CannotRun("stages the memory of a device, and host memory needs none of it")
    return replace(setup, transport=StagedTransport(setup.transport)).prepared("ring")


def direct(setup: Setup) -> Prepared:
    """Run the ring on device memory that MPI accepts."""
    if not setup.transport.takes(setup.x):
        raise CannotRun("this MPI does not take device memory")
    return setup.prepared("ring")


DEFAULTS = {
    "cpu": ("native-best", "ring", "auto", "function"),
    "cuda": ("host copies", "staged", "direct", "native"),
}
LIBRARY, BEST = "native", "-best"  # this job's MPI; a suffix: its fastest call


@dataclass(frozen=True)
class Candidate:
    open: Callable[[Setup], Prepared]  # ArgumentError or CannotRun leaves a case out
    maker: str = "ours"  # or others, or LIBRARY
    is_plan: bool = False  # in the memory of a user's program
    segments: bool = True  # whether their size matters
    check: Callable[[], object] = lambda: None  # ValueError: not available
    # Wraps all cases of a backend with threads, which takes turns separately. Yields its long name.
    session: Callable[[World], AbstractContextManager[str]] | None = None

    @property
    def is_library(self) -> bool:
        return self.maker == LIBRARY


OTHERS = {
    "gloo": Candidate(gloo, "others", segments=False, check=check_torch, session=gloo_group),
    "host copies": Candidate(host_copies, "others"),
    "staged": Candidate(staged),
    "direct": Candidate(direct),
    "function": Candidate(function, segments=False),
}
CANDIDATES = OTHERS | {
    f"{LIBRARY}{suffix}": Candidate(partial(native, form=form), LIBRARY, segments=False)
    for suffix, form in [*FORMS.items(), (BEST, FORMS[""])]
}


def candidate(name: str) -> Candidate:
    has_rules = name.partition(":")[0] == "auto"  # rules contain segments
    plan = Candidate(lambda setup: setup.prepared(name), is_plan=True, segments=not has_rules)
    return CANDIDATES.get(name, plan)


def label(algorithm: str, chosen: str | None, segment_bytes: int | None = None) -> str:
    """Name a candidate, its choice, and a segment that matters.

    >>> label("auto", "ring"), label("ring", "ring", 4096), label("native", None, 4096)
    ('auto (ring)', 'ring, 4 KiB', 'native')
    """
    name = algorithm if chosen in (None, algorithm) else f"{algorithm} ({chosen})"
    is_ours = candidate(algorithm).maker == "ours"
    return name if segment_bytes is None or not is_ours else f"{name}, {format_bytes(segment_bytes)}"


def labels(rows: Sequence[Row]) -> list[str]:
    cuts = len({row.segment_bytes for row in rows}) > 1
    return [label(row.algorithm, row.chosen, row.segment_bytes if cuts else None) for row in rows]


def calls_of(name: str, case: Case, ranks: int) -> list[str]:
    """Expand ``native-best`` to all suitable MPI calls."""
    if name != LIBRARY + BEST:
        return [name]
    return [LIBRARY + suffix for suffix, form in FORMS.items() if not form.why_not(case, ranks)]


def prepare(name: str, setup: Setup) -> Prepared:
    """CannotRun: the candidate has no call for this case."""
    who = candidate(name)
    if not who.is_library and setup.case.collective not in COLLECTIVES:
        raise CannotRun("has no program for it: only MPI's own calls are measured")
    if (who.is_library or who.session) and setup.transport.native is None:
        raise CannotRun(f"needs messages of MPI itself, not {setup.transport.name}")
    try:
        return who.open(setup)
    except ArgumentError as error:
        raise CannotRun(str(error)) from None
