"""Change the learning rate: a linear warm-up, then a decay.

    lr |       ___
       |     /     \\ _          warm-up: linear; the first iteration has lr / warmup, the last one lr
       |   /           \\ _      then T = iterations - warmup iterations of a decay, from lr towards 0
     0 | /                 \\
       +--------|------------|
              warmup     iterations

The first iteration that is not run would have 0: every rate is above zero. Later ones keep the last rate.

Sources: Loshchilov and Hutter, SGDR, ICLR 2017, equation 5, without restarts; for the warm-up Goyal et al., Accurate,
Large Minibatch SGD, 2017, section 2.2.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import TypeAlias

import numpy as np

from dear_mpi.collectives.program.user_file import telling

__all__ = ["Constant", "Cosine", "Linear"]

Rate: TypeAlias = Callable[[int], float]  # update number, from 0 -> learning rate

COMPARED = 1000  # updates


@dataclass(frozen=True)
class Constant:
    """Keep the rate constant after the warm-up. Raises ValueError.

    >>> list(map(Constant(0.8, iterations=6, warmup=4), range(6)))
    [0.2, 0.4, 0.6000000000000001, 0.8, 0.8, 0.8]
    """

    lr: float  # after the warm-up
    iterations: int  # of the whole run, including the warm-up
    warmup: int = 0  # iterations of the linear rise

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above zero, not {self.lr}")
        if type(self.iterations) is not int or self.iterations < 1:
            raise ValueError(f"iterations must be a whole number of at least 1, not {self.iterations!r}")
        if type(self.warmup) is not int or not 0 <= self.warmup < self.iterations:
            allowed = f"a whole number from 0 to {self.iterations - 1}, as there are {self.iterations} iterations"
            raise ValueError(f"warmup must be {allowed}, not {self.warmup!r}")

    def __call__(self, iteration: int) -> float:
        if iteration < self.warmup:
            return self.lr * ((iteration + 1) / self.warmup)
        left = self.iterations - min(iteration, self.iterations - 1)
        return self.decayed(left / (self.iterations - self.warmup))

    def decayed(self, left: float) -> float:
        """Return the rate when a share of the decay is left: 1 at first, 1 / T at last."""
        return self.lr


@dataclass(frozen=True)
class Linear(Constant):
    """Decay linearly after the warm-up; the last iteration has lr / T.

    >>> list(map(Linear(0.8, iterations=4), range(6)))
    [0.8, 0.6000000000000001, 0.4, 0.2, 0.2, 0.2]
    """

    def decayed(self, left: float) -> float:
        return self.lr * left


class Cosine(Linear):
    """Decay by half a cosine wave: lr (1 + cos(pi t / T)) / 2 in its iteration t.

    The last iteration, t = T - 1, has about lr (pi / 2T)^2.

    >>> [round(rate, 4) for rate in map(Cosine(0.8, iterations=4), range(6))]
    [0.8, 0.6828, 0.4, 0.1172, 0.1172, 0.1172]
    """

    def decayed(self, left: float) -> float:
        # (1 + cos(pi t / T)) / 2 = sin(pi (T - t) / 2T)^2, which does not vanish if cos is rounded to -1
        return super().decayed(math.sin(math.pi / 2 * left) ** 2)


DECAYS: dict[str, type[Constant]] = {"none": Constant, "linear": Linear, "cosine": Cosine}


def rates_of(rate: Rate) -> str:
    """Describe a rate by its first 1000 values, for comparison between ranks. Raises ValueError.

    >>> rates_of(lambda iteration: 0.1 / (1 + iteration))
    '0.1 in iteration 0, 0.0001 in iteration 999 (checksum 398677dd)'
    """
    if not callable(rate):
        raise ValueError(f"learning_rate must be a function of the iteration, counted from 0, not {rate!r}")
    values = [checked(rate, update) for update in range(COMPARED)]
    if checked(rate, 0) != values[0]:
        raise ValueError("learning_rate must depend on nothing but the number of the update; asked again, it differs")
    checksum = zlib.crc32(np.array(values, np.float64).tobytes())
    return f"{values[0]:g} in iteration 0, {values[-1]:g} in iteration {COMPARED - 1} (checksum {checksum:08x})"


def checked(rate: Rate, iteration: int) -> float:
    """Return a rate that an optimiser can use. Raises ValueError."""
    with telling(f"learning_rate fails in iteration {iteration}"):
        value = rate(iteration)
    if not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"learning_rate must give finite numbers above zero, not {value!r} in iteration {iteration}")
    return float(value)
