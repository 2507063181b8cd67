"""Local steps: ranks train alone for some iterations, then average their values. ``diloco`` has an outer optimiser.

    compute  | ff bp | ff bp | ff bp | ff bp        | ff bp | ...
    network                          | RS     | AG     |               every 4th iteration, as DeAR sends gradients

``local:10`` averages every 10 iterations. ``post-local:10:after=100`` sums gradients for 100 iterations first.
``diloco:10:lr=0.7:momentum=0.9`` takes what ranks have moved for a gradient, and makes a step with Nesterov momentum.
With ``staggered=yes`` each bucket has an iteration of its own; with ``delay=5`` what was brought together is used 5
iterations later, so that a link which is slower than the computation by far stays hidden (Streaming DiLoCo).

Between the ends of rounds ranks have different values. Where a run, a checkpoint or a test of the model comes in
between, the round ends there.

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
    """Values are averaged every ``period`` iterations."""

    options: ClassVar[Options] = {"period": above_zero}
    period = 10

    @classmethod
    def own_route(cls) -> Route:
        return rounds.local(cls.period)

    @classmethod
    def least(cls, ff: float, bp: float, network: CollectiveSeconds, parts: int = 1) -> float:
        """Of the iterations of a round one alone waits; ``network`` is a mean over them."""
        route = cls.own_route()
        whole_s = {name: seconds * route.period for name, seconds in network.items()}
        if route.lags:
            return max(ff + bp, DearEager.bound(0.0, 0.0, network))
        return ((route.period - 1) * (ff + bp) + super().least(ff, bp, whole_s, parts)) / route.period


class PostLocal(Local):
    """The same, after some iterations in which gradients are summed."""

    options: ClassVar[Options] = {"period": above_zero, "after": above_zero}
    after = 100

    @classmethod
    def own_route(cls) -> Route:
        return rounds.local(cls.period, after=cls.after)


class DiLoCo(Local):
    """What ranks have moved is averaged every ``period`` iterations, and an outer optimiser takes it for a gradient."""

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
