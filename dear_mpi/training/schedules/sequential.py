"""Run without overlap: all gradients, all communication, all updates. Other schedules must give the same result.

forward | backward | all-reduce of every bucket | updates | forward ...          t_ff + t_bp + t_ar
"""

from dear_mpi.training.schedules.schedule import CollectiveSeconds, Schedule


class Sequential(Schedule):
    """All-reduce the buckets one after the other, after the backward pass."""

    collectives = ("all_reduce",)

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        return ff + bp + network["all_reduce"]

    def end_backward(self) -> None:
        handles = [(bucket, self.fabric.start("all_reduce", bucket)) for bucket in reversed(self.fabric.buckets)]
        for bucket, handle in handles:
            self.fabric.wait(handle)
            self.fabric.update(bucket)
