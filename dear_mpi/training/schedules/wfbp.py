"""All-reduce each bucket: after the backward pass, during it, or until a layer needs it in the next forward pass.

    sequential    | forward | backward |                | all-reduces | updates     t_ff + t_bp + t_ar
    wfbp          | forward | backward, all-reduces under it          | updates     t_ff + max(t_bp, t_ar)
    bytescheduler | forward | backward, all-reduces under it and under the next     max(t_ff + t_bp, t_ar)

Source: Zhang et al., Poseidon, USENIX ATC 2017, section 3.1 (wait-free backpropagation).
"""

from collections.abc import Sequence
from typing import ClassVar

from dear_mpi.reporting.units import above_zero
from dear_mpi.training.buckets.layout import Bucket
from dear_mpi.training.fabric.fabric import Fabric, Handle, Key
from dear_mpi.training.schedules.lookahead import chains_of, list_scheduled
from dear_mpi.training.schedules.schedule import CollectiveSeconds, Late, Nominal, Options, Schedule


class Sequential(Schedule):
    """Overlap nothing: the reference for others' results."""

    collectives = ("all_reduce",)

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        return ff + bp + network["all_reduce"]

    def end_backward(self) -> None:
        handles = [(bucket, self.fabric.start("all_reduce", bucket)) for bucket in reversed(self.fabric.buckets)]
        for bucket, handle in handles:
            self.fabric.wait(handle)
            self.fabric.update(bucket)


class Wfbp(Schedule):
    """All-reduce a bucket at its last gradient; the next forward pass waits for all."""

    collectives = ("all_reduce",)

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        return ff + max(bp, network["all_reduce"])

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.reducing: list[tuple[Bucket, Handle]] = []

    def after_backward(self, call: int) -> None:
        for bucket in self.fabric.buckets.completed_by(call):
            self.reducing.append((bucket, self.fabric.start("all_reduce", bucket)))

    def end_backward(self) -> None:
        for bucket, handle in self.reducing:
            self.fabric.wait(handle)
            self.fabric.update(bucket)
        self.reducing.clear()


class MgWfbp(Wfbp):
    """Merged-gradient WFBP: the fusion merges buckets if that saves more latency than it adds waiting.

    Source: Shi et al., MG-WFBP, INFOCOM 2019, algorithm 1; github.com/HKBU-HPML/MG-WFBP.
    """

    fusion = "mgwfbp"


class Ddp(Wfbp):
    """PyTorch's DistributedDataParallel: update the first parameter after the last bucket has arrived.

    Source: Li et al., PyTorch Distributed, VLDB 2020, section 3.2; torch/csrc/distributed/c10d/reducer.hpp.
    """

    fusion = "ddp"

    def end_backward(self) -> None:
        for _, handle in self.reducing:
            self.fabric.wait(handle)
        for bucket, _ in self.reducing:
            self.fabric.update(bucket)
        self.reducing.clear()


class Horovod(Ddp):
    """Horovod: a small all-reduce agrees on ready tensors before each bucket (the original asks each millisecond).

    Source: Sergeev and Del Balso, Horovod, 2018; horovod/common/response_cache.cc.
    """

    extras = ("negotiation",)
    fusion = "horovod"

    def after_backward(self, call: int) -> None:
        for bucket in self.fabric.buckets.completed_by(call):
            self.fabric.start_extra("negotiation", bucket)
            self.reducing.append((bucket, self.fabric.start("all_reduce", bucket)))


class ByteScheduler(Late):
    """ByteScheduler over all-reduce: send partitions by the next forward pass's need, and await them per layer.

    ``credit`` partitions are handed over ahead and cannot be overtaken. Measured times decide once, without
    negotiation.

    Source: Peng et al., ByteScheduler, SOSP 2019; bytedance/byteps: partitions of 1,000,000 elements, credit 4,000,000.
    """

    collectives = ("all_reduce",)
    fusion = "cut:4MB"
    foresees = True
    options: ClassVar[Options] = {"credit": above_zero}
    credit = 4

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        return max(ff + bp, network["all_reduce"])

    def ordered(self, nominal: Nominal) -> Sequence[Key]:
        chains = chains_of(self.fabric.buckets, self.collectives, nominal)
        return list_scheduled(chains, loss_s=nominal.loss_s, committed=self.credit)

    def after_backward(self, call: int) -> None:
        for bucket in self.fabric.buckets.completed_by(call):
            self.under_way[bucket] = self.fabric.start("all_reduce", bucket)
