"""Wait-free backpropagation: all-reduce a bucket as soon as its last gradient is ready. With variants.

    compute  | forward | backward 3 2 1 0          | updates | forward ...           t_ff + max(t_bp, t_ar)
    network            |   all-reduce 3  2  1  0   |

The next forward pass waits for all buckets: communication beyond the backward pass is exposed.

Source: Zhang et al., Poseidon, USENIX ATC 2017, section 3.1; with fused tensors, Horovod (2018), PyTorch DDP (2020).
"""

from dear_mpi.training.fabric import Fabric, Handle
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.schedules.schedule import CollectiveSeconds, Schedule


class Wfbp(Schedule):
    """All-reduce during the backward pass."""

    collectives = ("all_reduce",)

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        return ff + max(bp, network["all_reduce"])

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.reducing: list[tuple[Bucket, Handle]] = []

    def after_backward(self, use: int) -> None:
        for bucket in self.fabric.buckets.completed_by(use):
            self.reducing.append((bucket, self.fabric.start("all_reduce", bucket)))

    def end_backward(self) -> None:
        for bucket, handle in self.reducing:
            self.fabric.wait(handle)
            self.fabric.update(bucket)
        self.reducing.clear()


class MgWfbp(Wfbp):
    """Merged-gradient WFBP: merge buckets if that saves more start-up latency than it adds waiting.

    Its fusion (``training/fusion.py``) needs layers' backward times and the network's alpha and beta; the first
    iterations measure them with 25 MB buckets.

    Source: Shi et al., MG-WFBP, INFOCOM 2019, algorithm 1; github.com/HKBU-HPML/MG-WFBP.
    """

    fusion = "mgwfbp"


class Ddp(Wfbp):
    """PyTorch's DistributedDataParallel: update the first parameter after the last bucket has arrived.

    The first bucket is small, 1 MiB, to start the network early; the others close at 25 MiB.

    Source: Li et al., PyTorch Distributed, VLDB 2020, section 3.2; torch/csrc/distributed/c10d/reducer.hpp
    (kDefaultFirstBucketBytes) and torch.nn.parallel.DistributedDataParallel (bucket_cap_mb).
    """

    fusion = "ddp"

    def end_backward(self) -> None:
        for _, handle in self.reducing:
            self.fabric.wait(handle)
        for bucket, _ in self.reducing:
            self.fabric.update(bucket)
        self.reducing.clear()


class Horovod(Ddp):
    """Horovod: each cycle agrees on ready tensors by a small all-reduce, fuses them in arrival order and all-reduces
    them.

        network            | n | AR 3 | n | AR 2 1 | n | AR 0 |                      n: is it ready on all ranks?

    Each millisecond a background thread combines one bit per tensor over all ranks, and sends the tensors ready
    everywhere in one buffer of up to 128 MiB. A buffer holds the tensors that became ready since the last one began:
    the fusion (``training/fusion.py``) follows from measured times. Cycles without ready tensors are free here: the
    network is idle.

    Source: Sergeev and Del Balso, Horovod, 2018; github.com/horovod/horovod, HOROVOD_CYCLE_TIME 1 ms and
    HOROVOD_FUSION_THRESHOLD 128 MiB since 0.21; response cache in horovod/common/response_cache.cc.
    """

    extras = ("negotiation",)
    fusion = "horovod"

    def after_backward(self, use: int) -> None:
        for bucket in self.fabric.buckets.completed_by(use):
            self.fabric.start_extra("negotiation", bucket)
            self.reducing.append((bucket, self.fabric.start("all_reduce", bucket)))
