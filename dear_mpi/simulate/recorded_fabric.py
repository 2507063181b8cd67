"""The timeline of a virtual run: from the clock of the fabric, of all ranks at once or of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from dear_mpi.training.fabric.order import Key
from dear_mpi.training.fabric.virtual import VirtualFabric, VirtualHandle, last, of_rank
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.timeline.recorder import Recorder
from dear_mpi.training.timeline.spans import Run

MOST_RANKS = 64  # whose spans are kept


class RecordedFabric(VirtualFabric):
    """A virtual fabric that tells a recorder what it does.

    Args:
        layers: the name of each use of a layer.
        options: of ``VirtualFabric``.
    """

    recorder: Recorder

    def __init__(self, *args: Any, layers: Sequence[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.recorder = Recorder(layers)
        self.handles = deque[tuple[int, VirtualHandle]]()  # with the iterations that were over when they were started

    def submit(self, key: Key, handle: VirtualHandle) -> None:
        super().submit(key, handle)
        self.handles.append((self.recorder.over, handle))
        while self.handles[0][0] < self.recorder.oldest:
            self.handles.popleft()

    def wait(self, handle: VirtualHandle) -> None:
        begin_s = self.clock_s
        super().wait(handle)
        self.recorder.waited(str(handle), begin_s, self.clock_s)

    def update(self, bucket: Bucket) -> None:
        begin_s = self.clock_s
        super().update(bucket)
        self.recorder.updated(bucket.index, begin_s, self.clock_s)

    def hold_up(self, delay_s: float) -> None:
        """What queues for the wire begins later, too; what is on it is longer there."""
        now_s = last(self.clock_s)
        for _, handle in self.handles:
            if handle.end_s is not None and handle.begin_s > now_s:
                handle.begin_s += delay_s
        super().hold_up(delay_s)

    def run(self, name: str, ranks: int) -> Run:
        """The last iterations, of all ranks: as one where they are alike."""
        for _, handle in self.handles:
            if handle.end_s is not None:
                self.recorder.carried(str(handle), handle.begin_s, handle.end_s)
        self.handles.clear()
        clocks = np.size(self.recorder.iterations[-1].end)
        names = [f"rank {rank}" for rank in range(min(clocks, MOST_RANKS))]
        if clocks == 1 < ranks:
            names = [f"each of {ranks} ranks"]

        def clock_of(rank: int) -> Any:
            return lambda lane, mark: of_rank(mark, rank)

        return Run(name, tuple(self.recorder.rank(each, clock_of(rank)) for rank, each in enumerate(names)), ranks)
