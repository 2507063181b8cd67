"""One model on one number of ranks, a network and an algorithm: what it costs under any schedule and fusion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.kernels.slab import round_up
from dear_mpi.reporting.units import check_seconds
from dear_mpi.simulate.compute import Compute
from dear_mpi.simulate.contention import Contention
from dear_mpi.simulate.machine import Machine
from dear_mpi.simulate.model import Model
from dear_mpi.simulate.prices.on_topology import PricesOnTopology
from dear_mpi.simulate.prices.prices import Prices
from dear_mpi.simulate.run import Prediction, check_finite, check_schedule, predict
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.uneven import Jitter, parse_jitter, straggling
from dear_mpi.training.fabric.foresight import portions_of
from dear_mpi.training.fabric.statistic import COUNT
from dear_mpi.training.fabric.virtual import Price
from dear_mpi.training.fusion.by_time import check_file, is_by_time
from dear_mpi.training.fusion.policies import borders
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.routes.find import collectives_of, priced
from dear_mpi.training.routes.legs import Collective
from dear_mpi.training.schedules import Schedule, own_fusion

LOSS_ALGORITHM = "recursive_doubling"  # for the few bytes of the loss
VERDICT_BYTES = 8 * COUNT


@dataclass(frozen=True)
class Scenario:
    """One model on one number of ranks; ``algorithm`` is for all collectives."""

    settings: Settings
    algorithm: str
    compute: Compute
    model: Model
    machine: Machine
    prices: Prices
    straggling: Callable[[Any], Any]

    @classmethod
    def of(cls, settings: Settings, algorithm: str, name: str, machine: Machine, ranks: int) -> Scenario:
        """
        Raises:
            ValueError: there is no such model, or a setting has no meaning for it or for so many ranks.
        """
        compute = settings.compute
        model = compute.model(name, ranks=ranks, wire=settings.wire or settings.route.wire, parts=settings.accumulate)
        if settings.update_s is not None:
            model = replace(model, update_s=check_seconds("update_s", settings.update_s))
        hosts = machine.network.hosts or tuple(range(ranks))
        kind = Prices if machine.topology is None else partial(PricesOnTopology, topology=machine.topology)
        prices = kind(machine.network, ranks, default_segment(hosts), model.layout.itemsize)
        return cls(settings, algorithm, compute, model, machine, prices, straggling(settings.straggler, ranks))

    @property
    def contention(self) -> Contention:
        """Between messages and updates."""
        given = self.settings.contention
        return self.machine.contention if given is None else given

    def check(self, name: str, schedule: type[Schedule], fusion: str) -> None:
        """See that a schedule can be simulated with this fusion.

        Raises:
            ScheduleError: it breaks a rule, or would wait for ever.
            ValueError: the fusion policy cannot be read.
        """
        policy = own_fusion(fusion, schedule)
        check_file(policy)
        if not is_by_time(policy):  # they need prices, which take time
            borders(policy, self.model.layout)
        how: dict[str, Any] = {"route": self.settings.route, "judged": self.settings.judged}
        check_schedule(self.model, name, schedule, fusion, lambda buckets: self.priced(schedule, buckets), **how)

    def predict(self, name: str, schedule: type[Schedule], fusion: str, *, traced: bool = False) -> Prediction:
        """An iteration under one schedule."""
        settings, ranks, places = self.settings, self.prices.ranks, 2 * len(self.model.names)
        return predict(
            self.model,
            name,
            schedule,
            fusion,
            lambda buckets: self.priced(schedule, buckets),
            ranks=ranks,
            route=settings.route,
            judged=settings.judged,
            iterations=settings.counted,
            loss_s=self.loss_s,
            verdict_s=self.few_s(VERDICT_BYTES) if settings.judged else 0.0,
            portions=self.portions,
            contention=None if self.contention.is_free else self.contention,
            compute=self.straggling,
            noise=Jitter(ranks, places, spread=parse_jitter(settings.jitter), seed=settings.seed),
            traced=traced,
        )

    def network_s(self, schedule: type[Schedule], buckets: Cut) -> dict[str, float]:
        """Seconds of each collective of a schedule, for all buckets."""
        price = priced(self.settings.route, self.priced(schedule, buckets))
        return {each: sum(price(each, bucket) for bucket in buckets) for each in schedule.collectives}

    def priced(self, schedule: type[Schedule], buckets: Cut) -> Price:
        """The prices of these buckets, all at once."""
        route, table = self.settings.route, dict[Collective, dict[int, float]]()
        names, counts = (*schedule.collectives, *schedule.extras), sorted({bucket.count for bucket in buckets})
        for leg in dict.fromkeys(leg for name in names for leg in collectives_of(route, name)):
            if leg.few:
                table[leg] = dict.fromkeys(counts, self.loss_s)
            else:
                sizes = [self.nbytes(leg, count) for count in counts]
                seconds = self.prices.seconds(self.algorithm, leg.name, sizes)
                table[leg] = dict(zip(counts, map(float, seconds), strict=True))

        def price(leg: Collective, bucket: Bucket) -> float:
            if bucket.count not in table[leg]:  # a portion of a bucket
                sizes = [self.nbytes(leg, bucket.count)]
                table[leg][bucket.count] = float(self.prices.seconds(self.algorithm, leg.name, sizes)[0])
            return table[leg][bucket.count]

        return price

    def portions(self, collective: str, bucket: Bucket) -> int:
        """Into how many portions a collective can be broken."""
        legs = collectives_of(self.settings.route, collective)
        if len(legs) != 1 or legs[0].op != "sum":
            return 1
        return portions_of(self.nbytes(legs[0], bucket.count), self.prices.ranks, self.prices.segment_bytes)

    def nbytes(self, leg: Collective, count: int) -> int:
        """What a collective has of so many elements, in equal shards."""
        model, ranks, itemsize = self.model, self.prices.ranks, self.model.layout.itemsize
        nbytes = self.settings.route.nbytes(leg.line, count, wire=itemsize, values=model.value_size, ranks=ranks)
        return round_up(nbytes, ranks * itemsize)

    @property
    def loss_s(self) -> float:
        """Of the sum of the loss, and of whatever else has a few bytes."""
        return self.few_s(1)

    def few_s(self, nbytes: int) -> float:
        """Of an all-reduce of a few bytes."""
        size = round_up(nbytes, self.prices.ranks * self.model.layout.itemsize)
        return float(self.prices.seconds(LOSS_ALGORITHM, "all_reduce", [size])[0])

    def row(self, prediction: Prediction, base_s: float) -> dict[str, Any]:
        """What ``--json`` has of it.

        Raises:
            ValueError: a figure is not finite.
        """
        settings, seconds = self.settings, prediction.iteration_s
        row = {
            "model": self.model.name,
            "params": self.model.params,
            "ranks": self.prices.ranks,
            "schedule": prediction.schedule,
            "algorithm": self.algorithm,
            "fusion": prediction.fusion,
            "buckets": len(prediction.buckets),
            "wire": self.model.wire,
            "accumulate": self.model.parts,
            "route": settings.route.name,
            "clip": settings.clip,
            "loss_scale": settings.loss_scale,
            **self.machine.row(),
            "compute": str(self.compute),
            "compute_origin": self.compute.origin,
            "update_s_per_element": self.model.update_s,
            "contention": self.contention.rows(),
            "contention_origin": self.contention.origin,
            "update_origin": self.compute.origin if settings.update_s is None and settings.profile else "given",
            "straggler": settings.straggler,
            "jitter": parse_jitter(settings.jitter),
            "iterations": settings.counted,
            "seed": settings.seed,
            "iteration_s": seconds,
            "compute_s": prediction.forward_s + prediction.backward_s,
            "exposed_comm_s": prediction.exposed_s,
            "update_s": prediction.update_s,
            "rest_s": prediction.rest_s,
            "bound_s": prediction.bound_s,
            "speedup_vs_wfbp": base_s / seconds if seconds else 1.0,
        }
        check_finite(f"the row of schedule {prediction.schedule!r}, fusion {prediction.fusion!r}", row)
        return row

    def rewired(self, **factors: float) -> Scenario:
        """The same with costs of the network times a factor."""
        network = self.machine.network
        for name, factor in factors.items():
            between = network.between
            between = None if between is None else replace(between, **{name: factor * getattr(between, name)})
            network = replace(network, **{name: factor * getattr(network, name)}, between=between)
        return replace(self, prices=replace(self.prices, network=network, found={}))
