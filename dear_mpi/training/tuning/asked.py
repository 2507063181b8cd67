"""What ``--fusion bo`` asks for: ``bo``, ``bo:random``, ``bo:1MB..64MB``, ``bo:grid:1MB..64MB``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import parse_bytes
from dear_mpi.training.tuning.bayesian import Bayesian
from dear_mpi.training.tuning.grid_search import GridSearch
from dear_mpi.training.tuning.random_search import RandomSearch
from dear_mpi.training.tuning.sizes import START, readable
from dear_mpi.training.tuning.tuner import Tuner

BY_TRIALS, BETWEEN = "bo", ".."
TUNERS: Mapping[str, type[Tuner]] = {"bayesian": Bayesian, "random": RandomSearch, "grid": GridSearch}


@dataclass(frozen=True)
class Asked:
    """A kind of search, and the smallest and the largest size in bytes; by default as in DeAR's published code."""

    tuner: type[Tuner] = Bayesian
    low: int = 1 << 20
    high: int = 256 << 20

    @classmethod
    def of(cls, policy: str) -> Asked:
        """
        Raises:
            ValueError: the policy cannot be read.

        >>> asked = Asked.of("bo:grid:1MB..64MB")
        >>> asked.tuner.__name__, asked.low, asked.high, asked.start
        ('GridSearch', 1048576, 67108864, 26214400)
        """
        tuner: type[Tuner] = Bayesian
        low, high = cls.low, cls.high
        try:
            for part in policy.split(":")[1:]:
                if BETWEEN in part:
                    low, high = (parse_bytes(end) for end in part.split(BETWEEN, 1))
                else:
                    tuner = lookup("kind", part, TUNERS)
            if not 0 < low < high:
                raise ValueError("the range must go up from at least 1 B")
        except ValueError as error:
            raise ValueError(f"fusion {policy!r}: {error}; write it like bo, bo:grid or bo:1MB..64MB") from None
        return cls(tuner, low, high)

    @property
    def start(self) -> int:
        """The size to begin with: 25 MB, or the middle of a range that does not have it."""
        if self.low <= START <= self.high:
            return START
        return min(max(readable(round((self.low * self.high) ** 0.5)), self.low), self.high)
