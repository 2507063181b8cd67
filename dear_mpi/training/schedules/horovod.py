"""Horovod: what is ready is agreed on by a small all-reduce in each cycle, fused in arrival order, and all-reduced.

    compute  | forward | backward 3 2 1 0             | updates | forward ...        t_ff + max(t_bp, t_ar)
    network            | n | AR 3 | n | AR 2 1 | n | AR 0 |                          n: is it ready on all ranks?

A background thread wakes each millisecond. It combines a bit for each tensor over all ranks, and sends what all have in
one buffer of up to 128 MiB. So a buffer holds what has become ready since the last one began: fusion ``horovod``
(``training/fusion/by_time.py``) follows from measured times. The optimiser's step waits for all, and nothing overlaps
with the next forward pass. Cycles in which nothing is ready cost nothing here, as the network is idle then.

Source: Sergeev and Del Balso, Horovod, 2018; github.com/horovod/horovod, HOROVOD_CYCLE_TIME 1 ms and
HOROVOD_FUSION_THRESHOLD 128 MiB since 0.21; response cache in horovod/common/response_cache.cc.
"""

from dear_mpi.training.schedules.ddp import Ddp


class Horovod(Ddp):
    """Negotiated all-reduces during the backward pass, all updates after the last of them."""

    extras = ("negotiation",)
    fusion = "horovod"

    def after_backward(self, use: int) -> None:
        for bucket in self.fabric.buckets.completed_by(use):
            self.fabric.start_extra("negotiation", bucket)
            self.reducing.append((bucket, self.fabric.start("all_reduce", bucket)))
