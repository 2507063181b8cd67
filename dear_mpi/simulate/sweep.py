"""Every model on every number of ranks under every schedule and fusion: one row for each, as ``--json`` has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.simulate.model import Model, synthetic_model
from dear_mpi.simulate.network import Wires, read_network
from dear_mpi.simulate.pace import Pace, parse_jitter, parse_straggler
from dear_mpi.simulate.prices.prices import Prices
from dear_mpi.simulate.run import Prediction, predict
from dear_mpi.training.fabric.virtual import Price
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.schedules import Schedule, find_schedules

__all__ = ["Scenario", "Settings", "Simulated", "simulate"]

BASELINE = "wfbp"  # what speed-ups are over
LOSS_ALGORITHM = "recursive_doubling"  # for the few bytes of the loss


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is simulated.

    Attributes:
        models: ``synthetic:NAME`` each.
        network: see ``read_network``.
        fusions: policies of ``borders``.
        forward_s, backward_s: seconds of compute; backward takes twice the time of forward unless it is given.
        wire: the type in which gradients travel.
        update_s: seconds of an update for each element.
        straggler, jitter: see ``pace.py``, as text.
        iterations: how many count; several differ only where there is jitter.
    """

    models: tuple[str, ...]
    ranks: tuple[int, ...]
    network: str
    schedules: tuple[str, ...]
    fusions: tuple[str, ...]
    algorithm: str = "ring"
    forward_s: float = 0.1
    backward_s: float | None = None
    wire: str = "fp32"
    update_s: float = 0.0
    straggler: str | None = None
    jitter: str = "0%"
    iterations: int = 1
    seed: int = 0

    def cases(self) -> Iterator[tuple[str, int, str, str]]:
        """Model, ranks, schedule and fusion of each row."""
        for model in self.models:
            for ranks in self.ranks:
                for fusion in self.fusions:
                    for schedule in self.schedules:
                        yield model, ranks, schedule, fusion


@dataclass(frozen=True)
class Simulated:
    """A row, and what it was made of."""

    row: dict[str, Any]
    scenario: Scenario
    prediction: Prediction


def simulate(settings: Settings, progress: Callable[[str], object] = lambda note: None) -> list[Simulated]:
    """Predict an iteration of each case; ``progress`` is called behind each.

    Raises:
        ValueError: a name is unknown, or a text cannot be read.
        ScheduleError: a schedule breaks a rule, or would wait for ever.
    """
    schedules = find_schedules(settings.schedules)
    baseline = find_schedules([BASELINE])
    found = []
    scenarios: dict[tuple[str, int], Scenario] = {}
    bases: dict[tuple[str, int, str], Prediction] = {}
    for name, ranks, schedule, fusion in settings.cases():
        if (name, ranks) not in scenarios:
            scenarios[name, ranks] = Scenario.of(settings, name, ranks)
        scenario, base = scenarios[name, ranks], (name, ranks, fusion)
        if base not in bases:
            bases[base] = scenario.predict(BASELINE, baseline[BASELINE], fusion)
        same = schedule == BASELINE
        prediction = bases[base] if same else scenario.predict(schedule, schedules[schedule], fusion)
        found.append(Simulated(scenario.row(prediction, fmean(bases[base].iteration_s)), scenario, prediction))
        progress(f"{name}, {ranks} ranks, {schedule}")
    return found


@dataclass(frozen=True)
class Scenario:
    """One model on one number of ranks."""

    settings: Settings
    model: Model
    wires: Wires
    prices: Prices

    @classmethod
    def of(cls, settings: Settings, name: str, ranks: int) -> Scenario:
        kind, _, table = name.partition(":")
        if kind != "synthetic":
            raise ValueError(f"simulate takes synthetic models, as synthetic:resnet50, not {name!r}")
        itemsize = lookup("wire", settings.wire, DTYPES).itemsize
        forward_s, backward_s = settings.forward_s, settings.backward_s
        for what, seconds in (("forward_time", forward_s), ("backward_time", backward_s)):
            if seconds is not None and not 0 <= seconds < float("inf"):
                raise ValueError(f"{what} must be a number of seconds that is not negative, not {seconds}")
        wires = read_network(settings.network, ranks)
        model = synthetic_model(
            table,
            ranks=ranks,
            forward_s=forward_s,
            backward_s=2 * forward_s if backward_s is None else backward_s,
            itemsize=itemsize,
        )
        hosts = wires.network.hosts or tuple(range(ranks))
        return cls(settings, model, wires, Prices(wires.network, ranks, default_segment(hosts), itemsize))

    def predict(self, name: str, schedule: type[Schedule], fusion: str) -> Prediction:
        """An iteration under one schedule."""
        settings, ranks = self.settings, self.prices.ranks
        straggler = None if settings.straggler is None else parse_straggler(settings.straggler, ranks)
        pace = Pace(ranks, straggler=straggler, jitter=parse_jitter(settings.jitter), seed=settings.seed)
        least = ranks * self.model.itemsize
        return predict(
            self.model,
            name,
            schedule,
            fusion,
            lambda buckets: self.priced(schedule, buckets),
            iterations=settings.iterations,
            loss_s=float(self.prices.seconds(LOSS_ALGORITHM, "all_reduce", [least])[0]),
            update_s=settings.update_s,
            compute=pace,
        )

    def priced(self, schedule: type[Schedule], buckets: Cut) -> Price:
        """The prices of these buckets, all at once."""
        sizes = sorted({bucket.nbytes for bucket in buckets})
        table: Mapping[tuple[str, int], float] = {
            (collective, nbytes): float(seconds)
            for collective in schedule.collectives
            for nbytes, seconds in zip(
                sizes, self.prices.seconds(self.settings.algorithm, collective, sizes), strict=True
            )
        }

        def price(collective: str, bucket: Bucket) -> float:
            return table[collective, bucket.nbytes]

        return price

    def row(self, prediction: Prediction, base_s: float) -> dict[str, Any]:
        """What ``--json`` has of it."""
        network, seconds = self.wires.network, fmean(prediction.iteration_s)
        return {
            "model": self.model.name,
            "ranks": self.prices.ranks,
            "schedule": prediction.schedule,
            "algorithm": self.settings.algorithm,
            "fusion": prediction.fusion,
            "buckets": len(prediction.buckets),
            "network": self.wires.text,
            "network_origin": self.wires.origin,
            "alpha_s": network.alpha,
            "beta_s_per_B": network.beta,
            "gamma_s_per_B": network.gamma,
            "o_s": network.o,
            "iteration_s": seconds,
            "compute_s": prediction.forward_s + prediction.backward_s,
            "exposed_comm_s": prediction.exposed_s,
            "bound_s": prediction.bound_s,
            "speedup_vs_wfbp": base_s / seconds if seconds else 1.0,
        }

    def rewired(self, **factors: float) -> Scenario:
        """The same with costs of the network times a factor."""
        network = self.wires.network
        for name, factor in factors.items():
            between = network.between
            between = None if between is None else replace(between, **{name: factor * getattr(between, name)})
            network = replace(network, **{name: factor * getattr(network, name)}, between=between)
        return replace(self, prices=replace(self.prices, network=network, found={}))
