from dear_mpi.training.schedules import Dear

RS, AG = "reduce_scatter", "all_gather"


class Mine(Dear):
    """Where the wire would be idle, it gathers."""

    order = (
        *[(RS, 5), (AG, 5), (RS, 4), (RS, 3)],
        *[(RS, 2), (AG, 2), (RS, 1), (RS, 0)],
        *[(AG, 0), (AG, 1), (AG, 3), (AG, 4)],
    )

    def after_backward(self, use):
        for bucket in self.fabric.buckets.completed_by(use):
            self.fabric.start(RS, bucket)
            self.under_way[bucket] = self.fabric.start(AG, bucket)

    def end_backward(self):
        """Nothing is left to start."""
