"""Run a case on gloo, by PyTorch's process group."""

import os
import platform
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

from dear_mpi.bench.backends import Candidate
from dear_mpi.bench.case import CannotRun, Prepared, Setup
from dear_mpi.collectives import chunk_bounds
from dear_mpi.kernels.array import Array, library_of
from dear_mpi.ranks.world import World

GLOO_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


def check_torch() -> None:
    if find_spec("torch") is None:
        raise ValueError("algorithm 'gloo' needs torch: pip install torch==2.13.0 (our extra 'gloo')")


@contextmanager
def gloo_group(world: World) -> Iterator[str]:
    """Collective: open torch's default process group at a TCP port of rank 0; yields its name."""
    import torch
    from torch import distributed

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
    import torch
    from torch import distributed

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
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": partial(distributed.all_reduce, source, op),
        "broadcast": partial(distributed.broadcast, source, 0),
        "reduce": partial(distributed.reduce, source, 0, op),
        "all_to_all": partial(distributed.all_to_all_single, target, source),
        "all_gather": partial(gather, target, source[shard]),
        "reduce_scatter": partial(scatter, target[shard], source, op),
    }
    return Prepared(calls[case.collective])


GLOO = Candidate(gloo, "others", segments=False, check=check_torch, session=gloo_group)
