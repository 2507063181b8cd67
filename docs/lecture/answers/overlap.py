from dear_mpi.training.schedules import Schedule


class Mine(Schedule):
    """All-reduce each bucket as soon as its last gradient is written."""

    collectives = ("all_reduce",)

    @staticmethod
    def bound(ff, bp, network):
        return ff + max(bp, network["all_reduce"])

    def __init__(self, fabric):
        super().__init__(fabric)
        self.reducing = []

    def after_backward(self, use):
        for bucket in self.fabric.buckets.completed_by(use):
            handle = self.fabric.start("all_reduce", bucket)
            self.reducing.append((bucket, handle))

    def end_backward(self):
        for bucket, handle in self.reducing:
            self.fabric.wait(handle)
            self.fabric.update(bucket)
        self.reducing.clear()
