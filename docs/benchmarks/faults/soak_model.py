"""A small model that sleeps in its backward pass, so that a long run has few iterations."""

import os
import time

from dear_mpi.models.layers import Dense
from tests import mortal

SLEEP_S = float(os.environ.get("SOAK_SLEEP_S", "0.004"))


class Sleepy(Dense):
    def backward(self, dy):
        time.sleep(SLEEP_S)
        return super().backward(dy)


def build(shape, classes, rng, dtype):
    return mortal.build(shape, classes, rng, dtype, hidden=(64, 32), second=Sleepy)
