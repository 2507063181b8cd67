"""Local steps: train ranks independently for some iterations, then average values; ``diloco`` adds an outer optimiser.

    compute  | ff bp | ff bp | ff bp | ff bp        | ff bp | ...
    network                          | RS     | AG     |               every 4th iteration, as DeAR sends gradients

``local:10`` averages every 10 iterations. ``post-local:10:after=100`` first sums gradients for 100 iterations.
``diloco:10:lr=0.7:momentum=0.9`` treats the ranks' movement as a gradient for Nesterov momentum. With ``staggered=yes``
buckets average in different iterations. With ``delay=5`` averages are used 5 iterations later, which hides even a link
far slower than the computation (Streaming DiLoCo).

Ranks differ within a round. The round ends early for the end of a run, a checkpoint or a test of the model.

Source: see ``routes/rounds.py``.
"""

from typing import ClassVar

from dear_mpi.reporting.units import above_zero, decimal
from dear_mpi.training.routes import rounds
from dear_mpi.training.routes.route import Route
from dear_mpi.training.schedules.dear import Dear
from dear_mpi.training.schedules.dear_eager import DearEager
from dear_mpi.training.schedules.schedule import CollectiveSeconds, Options, yes_or_no


def share(what: str, text: str) -> float:
    found = decimal(text)
    if found is None or not 0 <= found <= 1:
        raise ValueError(f"{what} must be a number from 0 to 1, not {text!r}")
    return found


class Local(Dear):
    """Average values every ``period`` iterations."""

    options: ClassVar[Options] = {"period": above_zero}
    period = 10

    @classmethod
    def own_route(cls) -> Route:
        return rounds.local(cls.period)

    @classmethod
    def least(cls, ff: float, bp: float, network: CollectiveSeconds, parts: int = 1) -> float:
        """Return the bound: one iteration of a round waits; ``network`` holds means over the round."""
        route = cls.own_route()
        whole_s = {name: seconds * route.period for name, seconds in network.items()}
        if route.lags:
            return max(ff + bp, DearEager.bound(0.0, 0.0, network))
        return ((route.period - 1) * (ff + bp) + super().least(ff, bp, whole_s, parts)) / route.period


class PostLocal(Local):
    """Sum gradients for some iterations, then average values like ``Local``."""

    options: ClassVar[Options] = {"period": above_zero, "after": above_zero}
    after = 100

    @classmethod
    def own_route(cls) -> Route:
        return rounds.local(cls.period, after=cls.after)


class DiLoCo(Local):
    """Average the ranks' movement every ``period`` iterations; an outer optimiser treats it as a gradient."""

    options: ClassVar[Options] = {
        "period": above_zero,
        "lr": share,
        "momentum": share,
        "delay": above_zero,
        "mix": share,
        "staggered": yes_or_no,
    }
    lr, momentum, delay, mix, staggered = 0.7, 0.9, 0, 0.0, False

    @classmethod
    def own_route(cls) -> Route:
        if cls.delay >= cls.period:
            raise ValueError(f"delay must be less than the period, {cls.period}, not {cls.delay}")
        outer = {"lr": cls.lr, "momentum": cls.momentum}
        return rounds.diloco(cls.period, delay=cls.delay, mix=cls.mix, staggered=cls.staggered, **outer)
