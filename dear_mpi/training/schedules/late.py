"""What schedules share that wait for one bucket at a time, at the last moment: when the next forward pass needs it."""

from dear_mpi.training.fabric import Fabric, Handle
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.schedules.schedule import Schedule


class Late(Schedule):
    """Waits for what it has under way right before a layer that needs it, and updates its parameters then.

    Attributes:
        under_way: the collective of each bucket that is to be waited for.
    """

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.under_way: dict[Bucket, Handle] = {}

    def before_forward(self, use: int) -> None:
        for bucket in self.fabric.buckets.needed_by(use):
            self.finish(bucket)

    def finish(self, bucket: Bucket) -> None:
        """Wait for a bucket's collective, if it is under way, and update its parameters."""
        handle = self.under_way.pop(bucket, None)
        if handle is not None:
            self.fabric.wait(handle)
            self.fabric.update(bucket)

    def flush(self) -> None:
        for bucket in self.fabric.buckets:
            self.finish(bucket)
