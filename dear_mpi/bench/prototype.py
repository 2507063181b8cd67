"""A ring all-reduce in plain mpi4py, written by hand in one short file.

It is a peer in our benchmark (does the machinery of programs, instructions and plans cost time?) and a lesson (what
does that machinery do, written out by hand for one algorithm?). It has persistent requests, segments, dependencies
by segment, and two receive buffers, and it sums into the chunk itself.
"""

from typing import Any

import numpy as np

from dear_mpi.collectives.program.partition import chunk_bounds
from dear_mpi.kernels.array import Array


class PrototypeRing:
    """All-reduce (sum) of ``x`` in place over an mpi4py communicator; unequal chunks would take another page.

    ``tag`` marks its messages: no other message on the communicator may have it.
    """

    def __init__(self, x: Array, comm: Any, *, tag: int, segment_bytes: int = 256 * 1024) -> None:
        rank, size = comm.rank, comm.size
        if x.size % size:
            raise ValueError(f"x must split into {size} equal chunks, not have {x.size} elements")
        segment = segment_bytes // x.itemsize
        self.x = x
        landings = [np.empty(segment, x.dtype) for _ in range(2)]
        self.sends, self.receives = list[Any](), list[Any]()
        self.sums: list[tuple[Array, Array] | None] = []
        for step in range(2 * size - 2):
            reducing = step < size - 1
            for part in segments(x, size, (rank - step - 1) % size, segment):
                self.sends.append(comm.Send_init(part, (rank + 1) % size, tag))
            for part in segments(x, size, (rank - step - 2) % size, segment):
                landing = landings[len(self.receives) % 2][: part.size] if reducing else part
                self.receives.append(comm.Recv_init(landing, (rank - 1) % size, tag))
                self.sums.append((part, landing) if reducing else None)
        self.ahead = len(segments(x, size, (rank - 1) % size, segment))  # sends of the first step wait for nothing

    def __call__(self) -> None:
        sends, receives = self.sends, self.receives
        sent = min(2, self.ahead)
        for request in receives[:2] + sends[:sent]:
            request.Start()
        for number, (request, pair) in enumerate(zip(receives, self.sums, strict=True)):
            request.Wait()
            if pair is not None:
                np.add(*pair, out=pair[0])
            if number + 2 < len(receives):
                receives[number + 2].Start()
            # A send may go when the receive `ahead` before it has been summed, two at a time.
            while sent < len(sends) and sent - self.ahead <= number and sent - 2 <= number:
                if sent >= 2:
                    sends[sent - 2].Wait()
                sends[sent].Start()
                sent += 1
        for request in sends[-2:]:
            request.Wait()

    def free(self) -> None:
        for request in self.sends + self.receives:
            request.Free()


def segments(x: Array, size: int, chunk: int, segment: int) -> list[Array]:
    start, stop = chunk_bounds(x.size, size, chunk)
    return [x[at : min(at + segment, stop)] for at in range(start, stop, segment)]
