"""PyTorch's DistributedDataParallel: buckets are all-reduced during the backward pass; the optimiser runs after it.

    compute  | forward | backward 3 2 1 0          | updates | forward ...           t_ff + max(t_bp, t_ar)
    network            |   all-reduce 3  2  1  0   |

The first bucket is small, 1 MiB, so that the network gets something to do early; the others are closed when they have
reached 25 MiB. All are waited for before the first parameter is updated, whereas ``wfbp`` updates a bucket while others
are still on their way.

Source: Li et al., PyTorch Distributed, VLDB 2020, section 3.2; torch/csrc/distributed/c10d/reducer.hpp
(kDefaultFirstBucketBytes) and torch.nn.parallel.DistributedDataParallel (bucket_cap_mb).
"""

from dear_mpi.training.schedules.wfbp import Wfbp


class Ddp(Wfbp):
    """All-reduce during the backward pass, all updates after the last of them."""

    fusion = "ddp"

    def end_backward(self) -> None:
        for _, handle in self.reducing:
            self.fabric.wait(handle)
        for bucket, _ in self.reducing:
            self.fabric.update(bucket)
        self.reducing.clear()
