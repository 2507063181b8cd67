"""A small model that sleeps in its backward pass, so that a long run has few iterations."""

import itertools
import os
import time

import numpy as np

from dear_mpi.models.layers import Dense, Gelu, Reshape, SoftmaxCrossEntropy

SLEEP_S = float(os.environ.get("SOAK_SLEEP_S", "0.004"))


class Sleepy(Dense):
    def backward(self, dy):
        time.sleep(SLEEP_S)
        return super().backward(dy)


def build(shape, classes, rng, dtype):
    sizes = [int(np.prod(shape)), 64, 32, classes]
    found = [Reshape((sizes[0],))]
    for number, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        weight = (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(dtype)
        found += [(Sleepy if number == 1 else Dense)(f"layer{number}", weight), Gelu()]
    return found[:-1], SoftmaxCrossEntropy()
