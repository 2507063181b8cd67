"""Our collectives as a backend of ``torch.distributed``: DDP and FSDP as they are, over any algorithm of ours.

    from dear_mpi.adapters.torch_backend import init_process_group
    init_process_group(MPI.COMM_WORLD, algorithm="mine.py:my_ring")
    model = torch.nn.parallel.DistributedDataParallel(model)

A collective is carried out by a thread of its group, in the order in which it was started, while the caller computes;
its ``Work`` is over when the thread says so. Tensors are of the host. All bytes go over the communicator that is given,
so ``torch.distributed`` needs no address and no port: its store is one that each rank has for itself.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch.distributed as dist

from dear_mpi.adapters.torch_group import Steps, TorchGroup, collective
from dear_mpi.adapters.torch_tensors import check_fits, contiguous, counts, cut, for_each, octets, only, plain
from dear_mpi.collectives import all_gather, all_reduce, barrier, broadcast, reduce, reduce_scatter, transport_of
from dear_mpi.collectives.plans.exchange import exchange
from dear_mpi.collectives.plans.runners import check_algorithm
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.reporting.units import check_seconds

__all__ = ["DearGroup", "init_process_group"]

NAME = "dear"
OPS = {"SUM": "sum", "AVG": "average", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}  # PyTorch's names and ours


def init_process_group(comm: Any, *, algorithm: str = "ring", stall_after_s: float = 0.0, **options: Any) -> None:
    """Collective: make torch.distributed's default group of all ranks of a communicator.

    Args:
        comm: an mpi4py communicator, or a ``Transport``.
        algorithm: of all-reduce, reduce-scatter and all-gather; broadcast and reduce go by a binomial tree, and
            gather, scatter and all-to-all straight from rank to rank.
        stall_after_s: say so when a rank has waited for so long (``docs/faults.md``); 0 for never.
        options: more of ``make_plan``, such as ``segment_bytes``.

    Raises:
        ArgumentError, MismatchError: there is no such algorithm, or ranks differ in what they give; on all ranks.
    """
    transport = transport_of(comm)
    options = {"algorithm": algorithm, **options}

    def facts() -> dict[str, object]:
        check_algorithm(algorithm, transport, "all_reduce")
        return {**options, "stall_after_s": check_seconds("stall_after_s", stall_after_s)}

    agree(transport, "init_process_group", facts)
    make = partial(group_of, transport, options, stall_after_s)
    dist.Backend.register_backend(NAME, make, extended_api=True, devices=["cpu"])
    dist.init_process_group(NAME, store=dist.HashStore(), rank=transport.rank, world_size=transport.size)


def group_of(transport: Transport, options: dict[str, Any], stall_after_s: float, asked: Any, _: Any) -> "DearGroup":
    """The group that torch.distributed asks for: its default one, or one of the ranks that it names.

    Each has a communicator of its own, made by its ranks alone, also where several have all ranks: their threads start
    collectives in no common order. Where ranks have no communicator (ValueError) there is the default group alone. A
    communicator stays until the program ends, because a thread may still wait on it.
    """
    native, ranks = transport.native, list(asked.global_ranks_in_group)  # no ranks for the default group
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
    return DearGroup(own, options, asked.group_id, stall_after_s)


class DearGroup(TorchGroup):
    """Ranks that communicate by our collectives; the methods are those that torch.distributed calls."""

    def __init__(self, transport: Transport, options: dict[str, Any], name: str, stall_after_s: float = 0.0) -> None:
        super().__init__(transport, name, stall_after_s)
        self.options = options

    def getBackendName(self) -> str:
        return NAME

    @collective
    def allreduce(self, tensors: Sequence[Any], opts: Any) -> Steps:
        op = op_of(opts)
        with plain(tensors) as arrays:
            yield tensors
            for array in arrays:
                all_reduce(array, self.transport, op=op, **self.options)

    allreduce_coalesced = allreduce

    @collective
    def reduce(self, tensors: Sequence[Any], opts: Any) -> Steps:
        """Only the root's tensor changes."""
        op, root = op_of(opts), opts.rootRank
        with plain(tensors) as arrays:
            yield tensors
            for array in arrays:
                reduce(array if self.rank() == root else array.copy(), self.transport, root=root, op=op)

    @collective
    def broadcast(self, tensors: Sequence[Any], opts: Any) -> Steps:
        with plain(tensors) as arrays:
            yield tensors
            for array in arrays:
                broadcast(octets(array), self.transport, root=opts.rootRank)

    @collective
    def allgather(self, outputs: Sequence[Sequence[Any]], given: Sequence[Any], opts: Any = None) -> Steps:
        """Ranks may give tensors of different sizes."""
        (tensors,), (own,) = outputs, given
        with plain(tensors) as arrays:
            check_fits("tensor", own, tensors[self.rank()])
            whole = np.empty(sum(array.nbytes for array in arrays), np.uint8)
            own = octets(contiguous(own))
            yield outputs
            sizes = counts([array.nbytes for array in arrays])
            all_gather(own, self.transport, out=whole, **sizes, **self.options)
            for array in arrays:
                octets(array)[...], whole = whole[: array.nbytes], whole[array.nbytes :]

    @collective
    def all_gather_single_coalesced(self, outputs: Sequence[Any], given: Sequence[Any], opts: Any = None) -> Steps:
        """Output: what the ranks give, one after the other."""
        with plain(outputs) as arrays:
            for output, own in zip(outputs, given, strict=True):
                check_fits("output_tensor", output, own, self.size())
            yield outputs
            for array, own in zip(arrays, given, strict=True):
                rows = octets(array).reshape(self.size(), -1)
                rows[self.rank()] = octets(contiguous(own))
                all_gather(rows, self.transport, **self.options)

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [given], opts)

    @collective
    def reduce_scatter_single_coalesced(self, outputs: Sequence[Any], given: Sequence[Any], opts: Any) -> Steps:
        """Given: a shard for each rank, one after the other; output: the sum of the shards with this rank's number."""
        op = op_of(opts)
        with plain(outputs) as arrays:
            for output, whole in zip(outputs, given, strict=True):
                check_fits("input", whole, output, self.size())
            wholes = [contiguous(whole).reshape(-1) for whole in given]
            yield outputs
            for array, whole in zip(arrays, wholes, strict=True):
                reduce_scatter(whole, self.transport, out=array.reshape(-1), op=op, **self.options)

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any) -> Any:
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    @collective
    def reduce_scatter(self, outputs: Sequence[Any], given: Sequence[Sequence[Any]], opts: Any) -> Steps:
        """Shards may be of different sizes."""
        ((output,), (shards,)), op = (outputs, given), op_of(opts)
        with plain([output]) as (array,):
            check_fits("output", output, shards[self.rank()])
            whole = np.concatenate([contiguous(shard).reshape(-1) for shard in shards])
            yield outputs
            sizes = counts([shard.numel() for shard in shards])
            reduce_scatter(whole, self.transport, out=array.reshape(-1), op=op, **sizes, **self.options)

    @collective
    def gather(self, outputs: Sequence[Sequence[Any]], given: Sequence[Any], opts: Any) -> Steps:
        """Outputs: a list at the root, none elsewhere."""
        (own,), (tensors,) = given, outputs or [[]]
        with plain(tensors) as arrays:
            outgoing = only(opts.rootRank, contiguous(own), self.size())
            incoming = for_each(arrays, self.size())
            yield outputs
            exchange(self.transport, "gather", outgoing, incoming)

    @collective
    def scatter(self, outputs: Sequence[Any], given: Sequence[Sequence[Any]], opts: Any) -> Steps:
        """Given: a list at the root, none elsewhere."""
        (tensors,) = given or [[]]
        with plain(outputs) as (array,):
            outgoing = for_each([contiguous(tensor) for tensor in tensors], self.size())
            incoming = only(opts.rootRank, array, self.size())
            yield outputs
            exchange(self.transport, "scatter", outgoing, incoming)

    @collective
    def alltoall(self, outputs: Sequence[Any], given: Sequence[Any], opts: Any = None) -> Steps:
        with plain(outputs) as arrays:
            outgoing = for_each([contiguous(tensor) for tensor in given], self.size())
            incoming = for_each(arrays, self.size())
            yield outputs
            exchange(self.transport, "all_to_all", outgoing, incoming)

    @collective
    def all_to_all_single(
        self, output: Any, given: Any, output_sizes: Any, given_sizes: Any, opts: Any = None
    ) -> Steps:
        """Cut along the first dimension: into the sizes given, or evenly if there are none."""
        with plain([output]) as (array,):
            outgoing = cut(contiguous(given), given_sizes, self.size())
            incoming = cut(array, output_sizes, self.size())
            yield output
            exchange(self.transport, "all_to_all_single", outgoing, incoming)

    @collective
    def barrier(self, opts: Any = None) -> Steps:
        yield None
        barrier(self.transport)

    def send(self, *arguments: Any) -> NoReturn:
        raise NotImplementedError(f"backend {NAME!r} does not offer send and receive between two ranks")

    recv = recv_anysource = send


def op_of(opts: Any) -> str:
    """What a collective is to reduce by."""
    name = opts.reduceOp.op.name
    if name not in OPS:
        raise ValueError(f"reduction {name} is not offered by backend {NAME!r}. Allowed: {', '.join(OPS)}")
    return OPS[name]
