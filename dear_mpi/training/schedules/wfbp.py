"""Wait-free backpropagation: a bucket is all-reduced as soon as its last gradient is ready.

    compute  | forward | backward 3 2 1 0          | updates | forward ...           t_ff + max(t_bp, t_ar)
    network            |   all-reduce 3  2  1  0   |

The next forward pass waits for all buckets, so whatever does not fit under the backward pass is exposed.

Source: Zhang et al., Poseidon, USENIX ATC 2017, section 3.1; with fused tensors, Horovod (2018), PyTorch DDP (2020).
"""

from collections.abc import Mapping

from dear_mpi.training.fabric import Fabric, Handle
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.schedules.schedule import Schedule


class Wfbp(Schedule):
    """All-reduce during the backward pass."""

    collectives = ("all_reduce",)

    @staticmethod
    def bound(ff: float, bp: float, network: Mapping[str, float]) -> float:
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
