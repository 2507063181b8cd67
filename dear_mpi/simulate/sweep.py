"""Every model on every number of ranks under every schedule and fusion: one row for each, as ``--json`` has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.reporting.units import check_seconds
from dear_mpi.simulate.compute import Source, source_of
from dear_mpi.simulate.contention import Contention
from dear_mpi.simulate.model import Model
from dear_mpi.simulate.network import Wires, read_network
from dear_mpi.simulate.pace import Pace, parse_jitter, parse_straggler
from dear_mpi.simulate.prices.prices import Prices
from dear_mpi.simulate.prices.replayed import Replayed
from dear_mpi.simulate.run import Prediction, predict
from dear_mpi.training.fabric.virtual import Price
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.profile import Profile
from dear_mpi.training.schedules import BASELINE, Schedule, find_schedules

__all__ = ["Scenario", "Settings", "Simulated", "simulate"]

LOSS_ALGORITHM = "recursive_doubling"  # for the few bytes of the loss


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is simulated.

    Attributes:
        models: ``synthetic:NAME`` each, or the model of the profile.
        network: see ``read_network``.
        fusions: policies of ``borders``.
        forward_s, backward_s, flops_per_s, batch, profile: where the seconds of compute come from, see ``source_of``.
        wire: the type in which gradients travel; that of the profile, or fp32, if it is not given.
        update_s: seconds of an update for each element; those of the profile, or none, if they are not given.
        contention: what messages and updates do to each other; what the network's file says, if it is not given.
        straggler, jitter: see ``pace.py``, as text.
        iterations: how many count; several differ only where there is jitter.
    """

    models: tuple[str, ...]
    ranks: tuple[int, ...]
    network: str
    schedules: tuple[str, ...]
    fusions: tuple[str, ...]
    algorithm: str = "ring"
    forward_s: float | None = None
    backward_s: float | None = None
    flops_per_s: float | None = None
    batch: int | None = None
    profile: Profile | None = None
    wire: str | None = None
    update_s: float | None = None
    contention: Contention | None = None
    straggler: str | None = None
    jitter: str = "0%"
    iterations: int = 1
    seed: int = 0

    @property
    def source(self) -> Source:
        """Where the seconds of compute come from; ValueError if several sources were chosen."""
        names = ("forward_s", "backward_s", "flops_per_s", "batch", "profile")
        return source_of(**{name: getattr(self, name) for name in names})

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
    prices: dict[tuple[int, int], Prices] = {}  # what a collective costs does not depend on the model
    bases: dict[tuple[str, int, str], Prediction] = {}
    for name, ranks, schedule, fusion in settings.cases():
        if (name, ranks) not in scenarios:
            scenario = Scenario.of(settings, name, ranks)
            shared = prices.setdefault((ranks, scenario.model.itemsize), scenario.prices)
            scenarios[name, ranks] = replace(scenario, prices=shared)
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
    source: Source
    model: Model
    wires: Wires
    prices: Prices

    @classmethod
    def of(cls, settings: Settings, name: str, ranks: int) -> Scenario:
        source, wires = settings.source, read_network(settings.network, ranks)
        model = source.model(name, ranks=ranks, wire=settings.wire)
        if settings.update_s is not None:
            check_seconds("update_s", settings.update_s)
            model = replace(model, update_s=settings.update_s)
        hosts = wires.network.hosts or tuple(range(ranks))
        kind = Prices if wires.topology is None else partial(Replayed, topology=wires.topology)
        prices = kind(wires.network, ranks, default_segment(hosts), model.itemsize)
        return cls(settings, source, model, wires, prices)

    @property
    def contention(self) -> Contention:
        """Between messages and updates."""
        given = self.settings.contention
        return self.wires.contention if given is None else given

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
            contention=self.contention,
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
            "compute": str(self.source),
            "compute_origin": self.source.origin,
            "update_s_per_element": self.model.update_s,
            "stall": self.contention.stall,
            "stretch": self.contention.stretch,
            "contention_origin": self.contention.origin,
            "update_origin": "measured" if self.settings.update_s is None and self.settings.profile else "given",
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
