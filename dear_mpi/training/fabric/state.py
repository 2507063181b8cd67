"""The optimiser's state of the whole line, wherever ranks keep their shards of it.

To cut buckets anew, or to write a checkpoint, the state is gathered: then every rank has all of it for a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.training.line.arena import Arena
from dear_mpi.training.line.bucket import Cut


def whole_state(arena: Arena, buckets: Cut, transport: Transport) -> Iterator[Array]:
    """Collective: the state of the whole line, array by array, on all ranks."""
    if arena.shards.ranks == 1:
        yield from arena.state
        return
    for own in arena.state:
        empty_like = array_module(own).empty_like
        gathered = empty_like(arena.values, dtype=own.dtype)
        gathered.reshape(arena.shards.ranks, -1)[arena.shards.rank] = own
        with make_plan("all_gather", gathered, transport, algorithm="auto", alike=True) as plan:
            plan()
        line = empty_like(gathered)
        arena.shards.on_line(gathered, buckets, line)
        yield line


@contextmanager
def state_line(arena: Arena, buckets: Cut, number: int) -> Iterator[Array]:
    """A state array for the whole line, to be filled within the block; this rank keeps its part of it."""
    own = arena.state[number]
    if arena.shards.ranks == 1:
        yield own
        return
    line = array_module(own).zeros(arena.values.shape, own.dtype)
    yield line
    arena.shards.from_line(line, buckets, own)


@contextmanager
def moved(arena: Arena, old: Cut, new: Cut, transport: Transport) -> Iterator[None]:
    """Collective: buckets are cut anew within the block; the state moves to the ranks that have its shards then."""
    if arena.shards.ranks == 1:
        yield
        return
    lines = list(whole_state(arena, old, transport))
    yield
    for own, line in zip(arena.state, lines, strict=True):
        arena.shards.from_line(line, new, own)
