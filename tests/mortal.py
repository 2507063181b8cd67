"""A model whose ranks die as the variable DEATHS plans it: RANK:PASS:KIND:DELAY,...

The rank dies in its layer's backward pass of this number, or so many seconds later (kill, stop).
"""

import itertools
import os
import signal
import threading

import numpy as np

from dear_mpi.models.layers import Dense, Gelu, Reshape, SoftmaxCrossEntropy


class Death(Exception):
    """Plays a kill."""


def own_rank():
    return int(os.environ.get("OMPI_COMM_WORLD_RANK") or threading.current_thread().name.removeprefix("rank_"))


class Mortal(Dense):
    def __init__(self, *given):
        super().__init__(*given)
        self.rank, self.passes = own_rank(), 0
        plans = [each.split(":") for each in os.environ.get("DEATHS", "").split(",") if each]
        self.plans = {
            int(number): (kind, float(delay)) for rank, number, kind, delay in plans if int(rank) == self.rank
        }

    def backward(self, dy):
        self.passes += 1
        kind, delay_s = self.plans.get(self.passes, ("", 0.0))
        if kind in ("kill", "stop"):
            how = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[kind]
            signal.signal(signal.SIGALRM, lambda *given: os.kill(os.getpid(), how))
            signal.setitimer(signal.ITIMER_REAL, delay_s + 1e-6)
        elif kind == "raise":
            raise Death("as planned")
        return super().backward(dy)


def build(shape, classes, rng, dtype, hidden=(24, 16), second=Mortal):
    sizes = [int(np.prod(shape)), *hidden, classes]
    found = [Reshape((sizes[0],))]
    for number, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weight = (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(dtype)
        found += [(second if number == 1 else Dense)(f"layer{number}", weight), Gelu()]
    return found[:-1], SoftmaxCrossEntropy()
