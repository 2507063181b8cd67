"""Measure a profile of a session while it trains, from its log:

    profiler = Profiler(session.group)
    for x, targets in batches:
        session.step(x, targets)
        profiler.note()
    profile = profiler.profile("my model")

The half of the iterations with middle lengths counts, without waits: its means add up, medians per layer would not.

``starts_s`` and ``wakes_s`` are handover delays, of Python threads only:

    main thread   hands over | computes, waits ......................................... | goes on
    engine        no work .......... start_s | begins ............... ends | wake_s
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np

from dear_mpi.collectives.program.hosts import share_served
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import name_of
from dear_mpi.models.layer import layer_name
from dear_mpi.training.events import EXCHANGE, Record, fold, middle
from dear_mpi.training.events.profile import Profile, Tensor, Use
from dear_mpi.training.fabric.fabric import SUMS
from dear_mpi.training.fabric.plan_cost import WirePrices, plan_s
from dear_mpi.training.fabric.virtual import Costs, Price
from dear_mpi.training.group import WorkerGroup

OF_NO_BUCKET = {kind for kind, _ in SUMS}


def starts_s(record: Record) -> Iterator[float]:
    """Yield the delays from handover to begin, if the engine was idle."""
    for before, event in pairwise(record.engine):
        if event.since is not None and before.end <= event.since:
            yield event.begin - event.since


def wakes_s(record: Record) -> Iterator[float]:
    """Yield the delays from the end of an operation until the thread that waited continued."""
    for wait in (event for event in record.within if event.kind == "wait"):
        ends = [
            event.end
            for event in record.engine
            if event.number == wait.number
            and (event.kind in OF_NO_BUCKET) == (wait.awaited in OF_NO_BUCKET)
            and wait.begin < event.end <= wait.end
        ]
        if ends:
            yield wait.end - max(ends)


__all__ = ["Profiler"]

WARM = 2  # uncounted iterations, if there are more: the first one ends with a flush
KEPT_SAMPLES = 1000  # kept iterations


class Profiler:
    """Collect the times of iterations with one of a session's schedules, by default the first."""

    def __init__(self, group: WorkerGroup, schedule: str | None = None) -> None:
        self.group, self.schedule = group, schedule or next(iter(group.schedules))
        self.samples = deque[Array](maxlen=KEPT_SAMPLES)
        self.noted, self.update_s = 0, 0.0
        self.carried_s: dict[tuple[str, int], float] = {}

    def note(self) -> None:
        """Keep the times of the last iteration."""
        trainer, fabric = self.group.trainers[self.schedule], self.group.fabric
        last, times = fabric.log.last, trainer.times
        taken = fold((*last.within, *last.engine), fabric.seconds, lambda event: (event.kind, event.number))
        forward_s, input_s, weights_s, exchange_s = (
            np.array([taken[kind, use] for use in range(len(trainer.calls))])
            for kind in ("forward", "backward", "weights", EXCHANGE)
        )
        length_s = times.iteration_s - times.exposed_s
        rest_s = length_s - times.forward_s - times.backward_s - fold(last.within, fabric.seconds)["update"]
        if self.noted == WARM:
            self.samples.clear()
        delays = [list(each(last)) if self.group.options.device == "cpu" else [] for each in (starts_s, wakes_s)]
        handoffs = [figure for found in delays for figure in (sum(found), len(found))]
        others = [self.update_s_per_element(), max(0.0, rest_s), *self.codes_s(), *handoffs, length_s]
        self.samples.append(np.concatenate([forward_s, input_s + weights_s, weights_s, exchange_s, others]))
        self.noted += 1
        for event in list(last.engine):
            key = event.kind, event.number
            carried_s = self.group.streams.communication.seconds(event.begin, event.end)
            self.carried_s[key] = min(carried_s, self.carried_s.get(key, carried_s))

    def codes_s(self) -> tuple[float, float]:
        """Return the last iteration's seconds of compression on the engine, measured and nominal."""
        group, measured_s, nominal_s = self.group, 0.0, 0.0
        size, share = group.world.size, share_served(group.world.transport.hosts)
        stages = {stage.label: stage for stage in group.route.stages if stage.compute_s(1, size)}
        for event in group.fabric.log.last.engine:
            if event.kind in stages and event.number < len(group.buckets):
                measured_s += float(group.streams.communication.seconds(event.begin, event.end))
                nominal_s += stages[event.kind].served_s(group.buckets[event.number].count, size, share)
        return measured_s, nominal_s

    def update_s_per_element(self) -> float:
        """Return update seconds per element of two iterations; after a new cut the previous value."""
        group, (*_, before, last) = self.group, self.group.fabric.log.records
        if group.route.updates_under_way:
            stream, events = group.streams.communication, [*before.engine, *last.engine]
        else:
            stream, events = group.streams.compute, [*before.after, *last.within, *last.after]
        found = [event for event in events if event.what in group.arena.shards.partitions]
        own = [group.arena.shards.own(event.what) for event in found]
        elements = sum(group.owners.work(group.layout, span.start, span.stop) for span in own)
        if elements:
            self.update_s = float(sum(stream.seconds(event.begin, event.end) for event in found)) / elements
        return self.update_s

    def profile(self, model: str, *, batch: int | None = None) -> Profile:
        """Return the profile of the rank that is busy longest, equal on all ranks. Collective.

        Raises ValueError if no iteration was noted.
        """
        if not self.samples:
            raise ValueError("a profile needs an iteration, and note() after it")
        group, uses = self.group, len(self.group.calls)
        own: list[float] = middle(np.array(self.samples), len(self.samples) // 4, by=-1).tolist()
        ranks: list[list[float]] = group.world.transport.gather_values(own)
        rank = max(range(len(ranks)), key=lambda each: ranks[each][-1])
        layers_s, (update_s, rest_s, *sums, _) = ranks[rank][: 4 * uses], ranks[rank][4 * uses :]
        code_factor, start_s, wake_s = (
            total / count if count else None for total, count in zip(sums[::2], sums[1::2], strict=True)
        )
        return Profile(
            model=model,
            device=group.options.device,
            ranks=group.world.size,
            rank=rank,
            batch=batch,
            accumulate=group.passes,
            dtype=name_of(group.arena.values.dtype),
            wire=group.options.wire or name_of(group.arena.wire.dtype),
            schedule=self.schedule,
            iterations=len(self.samples),
            update_s_per_element=update_s,
            rest_s=rest_s,
            uses=tuple(self.use(number, layers_s[number::uses]) for number in range(uses)),
            code_factor=code_factor,
            start_s=start_s or 0.0,
            wake_s=wake_s or 0.0,
        )

    def costs(self, *, timed: bool = False) -> Costs:
        """Return the profile's costs, and the prices of collectives without compute.

        Collective, while nothing is under way; overwrites gradients. With ``timed`` collectives are also measured on an
        emulated link, with the hosts' overhead.
        """
        group, schedule, found = self.group, self.group.schedules[self.schedule], self.profile(self.schedule).costs()
        prices = WirePrices(group.fabric, timed=True) if timed and group.world.link else group.prices
        loss_s = plan_s(group.fabric, group.meter.plan, timed=timed)
        return replace(
            found,
            price=prices.of((*schedule.collectives, *schedule.extras)),
            loss_s=loss_s,
            verdict_s=loss_s,
            ranks=group.world.size,
            served=share_served(group.world.transport.hosts),
            work=group.arena.sharing.work,
            portions=group.fabric.portions,
        )

    def beside_layers(self, price: Price) -> Price:
        """Return prices of collectives while layers compute. Collective, before the next cut.

        One factor, the median over buckets, scales the given prices. The fastest rank counts: early ranks wait.
        """
        group, alone_s = self.group, dict[tuple[str, int], float]()
        for name in group.schedules[self.schedule].collectives:
            for stage, bucket in product(group.route.collectives(name), group.buckets):
                key = stage.label, bucket.index
                alone_s[key] = min(price(stage, bucket), alone_s.get(key, math.inf))
        own = [self.carried_s.get(key, math.inf) for key in alone_s]
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.min(group.world.transport.gather_values(own), axis=0) / [*alone_s.values()]
        finite = found[np.isfinite(found)]
        factor = float(np.median(finite)) if finite.size else 1.0
        return lambda stage, bucket: factor * price(stage, bucket)

    def use(self, number: int, seconds: Sequence[float]) -> Use:
        layout, layer = self.group.layout, self.group.calls[number].layer
        own = [(tensor, self.group.arena.parameters[tensor]) for tensor in layout.calls[number]]
        tensors = tuple(
            Tensor(tensor, layout.shapes[tensor], each.outputs, each.cost(each.optimizer) if each.optimizer else None)
            for tensor, each in own
        )
        return Use(layer_name(layer, number), tensors, *seconds)
