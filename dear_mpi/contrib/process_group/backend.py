"""Run unchanged DDP and FSDP over our algorithms: a backend of ``torch.distributed``.

    from dear_mpi.torch import init_process_group
    init_process_group(MPI.COMM_WORLD, algorithm="mine.py:my_ring")
    model = torch.nn.parallel.DistributedDataParallel(model)

A group's thread runs its collectives in their starting order while the caller computes, and completes each ``Work``.
Tensors are in host memory, or on a GPU. Each rank has a separate store, so there is no address and no port.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from dear_mpi.collectives import all_gather, all_reduce, barrier, broadcast, reduce, reduce_scatter, transport_of
from dear_mpi.collectives.plans.runners import check_algorithm
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.contrib.process_group.exchange import exchange
from dear_mpi.contrib.process_group.group import (
    Call,
    Calls,
    TorchGroup,
    check_fits,
    collective,
    cut,
    for_each,
    only,
)
from dear_mpi.kernels.array import Array
from dear_mpi.reporting.units import check_seconds
from dear_mpi.torch.tensors import array_of, dense, octets

__all__ = ["DearGroup", "init_process_group"]

NAME = "dear"
Arrays = Sequence[Array]
Tensors = Sequence[Any]
OPS = {name: name.lower() for name in ("SUM", "MIN", "MAX", "BAND", "BOR", "BXOR")}  # PyTorch's names and ours
OPS |= {"AVG": "average", "PRODUCT": "prod"}


def init_process_group(comm: Any, *, algorithm: str = "ring", stall_after_s: float = 0.0, **options: Any) -> None:
    """Collective: create torch.distributed's default group from all ranks of a communicator.

    Args:
        comm: an mpi4py communicator, or a ``Transport``.
        algorithm: of all-reduce, reduce-scatter and all-gather; broadcast and reduce use a binomial tree, and gather,
            scatter and all-to-all direct messages.
        stall_after_s: report a rank's wait after this time (``docs/faults.md``); 0: never.
        options: more of ``make_plan``, such as ``segment_bytes``.

    Raises:
        ArgumentError, MismatchError: there is no such algorithm, or ranks differ in their arguments; on all ranks.
    """
    transport = transport_of(comm)
    options = {"algorithm": algorithm, **options}

    def facts() -> dict[str, object]:
        check_algorithm(algorithm, transport, "all_reduce")
        return {**options, "stall_after_s": check_seconds("stall_after_s", stall_after_s)}

    agree(transport, "init_process_group", facts)
    make = partial(group_of, transport, options, stall_after_s)
    dist.Backend.register_backend(NAME, make, extended_api=True, devices=["cpu", "cuda"])
    dist.init_process_group(NAME, store=dist.HashStore(), rank=transport.rank, world_size=transport.size)


def group_of(transport: Transport, options: dict[str, Any], stall_after_s: float, asked: Any, _: Any) -> "DearGroup":
    """Create the group that torch.distributed asks for: the default one, or one of the named ranks.

    Its ranks make a separate communicator, since the threads of groups start collectives in no common order. It stays
    until the program ends, because a thread may still wait on it. Without MPI only the default group exists: others
    raise a ValueError.
    """
    native, ranks = transport.native, list(asked.global_ranks_in_group)  # the default group names no ranks
    if not ranks:
        own = transport if native is None else transport_of(native.Dup())
    elif native is None:
        raise ValueError(f"a second group (ranks {ranks}) needs MPI, not the transport {transport.name!r}")
    else:
        everyone = native.Get_group()
        some = everyone.Incl(ranks)
        own = transport_of(native.Create_group(some))
        for group in (everyone, some):
            group.Free()
    return DearGroup(own, asked.group_id, stall_after_s, options)


class DearGroup(TorchGroup):
    """A group of ranks over our collectives, with the methods that torch.distributed calls."""

    def getBackendName(self) -> str:
        return NAME

    @collective
    def allreduce(self, outs: Tensors, opts: Any) -> Calls:
        op = op_of(opts)
        return [partial(all_reduce, array_of(out), self.transport, op=op, **self.options) for out in outs]

    allreduce_coalesced = allreduce

    @collective
    def reduce(self, outs: Tensors, opts: Any) -> Calls:
        """Reduce to the root: only its tensor changes."""
        how = {"root": opts.rootRank, "op": op_of(opts)}
        own = outs if self.rank() == opts.rootRank else [out.clone() for out in outs]
        return [partial(reduce, array_of(out), self.transport, **how) for out in own]

    @collective
    def broadcast(self, outs: Tensors, opts: Any) -> Calls:
        return [partial(broadcast, octets(out), self.transport, root=opts.rootRank) for out in outs]

    @collective
    def allgather(self, outs: Tensors, given: Tensors, opts: Any = None) -> Calls:
        """Gather tensors, which may differ in size between ranks."""
        (own,) = given
        check_fits("tensor", own, outs[self.rank()])
        return self.exchanged("all_gather", [octets(own)] * self.size(), map(octets, outs))

    @collective
    def all_gather_single_coalesced(self, outs: Tensors, given: Tensors, opts: Any = None) -> Calls:
        """Gather the ranks' tensors into an output, in rank order."""
        calls: list[Call] = []
        for out, own in zip(outs, given, strict=True):
            check_fits("output_tensor", out, own, self.size())
            rows = out.view(self.size(), -1)
            calls.append(partial(rows[self.rank()].copy_, own.reshape(-1)))
            calls.append(partial(all_gather, octets(rows).reshape(len(rows), -1), self.transport, **self.options))
        return calls

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [given], opts)

    @collective
    def reduce_scatter_single_coalesced(self, outs: Tensors, given: Tensors, opts: Any) -> Calls:
        """Reduce a shard for each rank, in rank order, into the sum of this rank's shards."""
        for out, whole in zip(outs, given, strict=True):
            check_fits("input", whole, out, self.size())
        return [self.scattered(*pair, opts) for pair in zip(outs, given, strict=True)]

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any) -> Any:
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    @collective
    def reduce_scatter(self, outs: Tensors, given: Tensors, opts: Any) -> Calls:
        """Reduce and scatter shards, which may differ in size."""
        (out,), (shards,) = outs, given
        check_fits("output", out, shards[self.rank()])
        sizes = [shard.numel() for shard in shards]
        counts = {} if len(set(sizes)) == 1 else {"counts": sizes}
        return [self.scattered(out, torch.cat([shard.reshape(-1) for shard in shards]), opts, **counts)]

    def scattered(self, out: Any, whole: Any, opts: Any, **counts: Any) -> Call:
        given, options = array_of(dense(whole)).reshape(-1), {**counts, **self.options}
        return partial(reduce_scatter, given, self.transport, out=array_of(out).reshape(-1), op=op_of(opts), **options)

    def exchanged(self, what: str, outgoing: Arrays, incoming: Iterable[Array]) -> Calls:
        return [partial(exchange, self.transport, what, outgoing, list(incoming))]

    @collective
    def gather(self, outs: Tensors, given: Tensors, opts: Any) -> Calls:
        """Gather into the root's list of outputs; other ranks give no list."""
        return self.exchanged("gather", only(opts.rootRank, given[0], self.size()), for_each(outs, self.size()))

    @collective
    def scatter(self, outs: Tensors, given: Tensors, opts: Any) -> Calls:
        """Scatter the root's list; other ranks give no list."""
        (tensors,) = given or [[]]
        return self.exchanged("scatter", for_each(tensors, self.size()), only(opts.rootRank, outs[0], self.size()))

    @collective
    def alltoall(self, outs: Tensors, given: Tensors, opts: Any = None) -> Calls:
        return self.exchanged("all_to_all", for_each(given, self.size()), for_each(outs, self.size()))

    @collective
    def all_to_all_single(self, outs: Tensors, given: Any, output_sizes: Any, given_sizes: Any, *opts: Any) -> Calls:
        """Exchange slices of the first dimension, in the given sizes or of equal size."""
        outgoing, incoming = cut(given, given_sizes, self.size()), cut(outs[0], output_sizes, self.size())
        return self.exchanged("all_to_all_single", outgoing, incoming)

    @collective
    def barrier(self, outs: Tensors, opts: Any = None) -> Calls:
        return [partial(barrier, self.transport)]

    def send(self, *arguments: Any) -> NoReturn:
        raise NotImplementedError(f"backend {NAME!r} does not offer send and receive between two ranks")

    recv = recv_anysource = send


def op_of(opts: Any) -> str:
    name = opts.reduceOp.op.name
    if name not in OPS:
        raise ValueError(f"reduction {name} is not offered by backend {NAME!r}. Allowed: {', '.join(OPS)}")
    return OPS[name]
