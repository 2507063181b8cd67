"""Build all objects for one set of ranks: a group of workers.

layers ---> arena, calls         memory of this rank's values, gradients and shards of the optimiser's state
transport -> engine -> fabric    the plans of collectives
schedules -> trainers            one for each, on the same model and the same buckets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.runners import check_algorithm
from dear_mpi.collectives.plans.tuning import wants_shared
from dear_mpi.kernels.dtypes import DTYPES, name_of
from dear_mpi.kernels.slab import Slab
from dear_mpi.models.layer import Layer, Loss, is_exchanging
from dear_mpi.ranks.streams import Streams
from dear_mpi.ranks.world import World
from dear_mpi.training.buckets.arena import Arena
from dear_mpi.training.buckets.layout import Cut, flat_dtype, layout_of, of_tensors, trained
from dear_mpi.training.buckets.owners import Ownership, Weights
from dear_mpi.training.choice import chosen_route
from dear_mpi.training.fabric.live import Engine, LiveFabric
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.layer_call import LayerCall, split_calls
from dear_mpi.training.options import Options
from dear_mpi.training.routes.invariant import shares, tree_of
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.trainer import LossMeter, Trainer

if TYPE_CHECKING:
    from dear_mpi.training.fabric.plan_cost import WirePrices
    from dear_mpi.training.fabric.statistic import LossScale

PLANS_BYTES = 16 << 20  # side buffers: a window of segments per plan and peer


class WorkerGroup:
    """Hold this rank's view of the workers of a session.

    ``open``, ``cut``, ``share_out``, ``flush`` and ``settle`` are collective. ``layers`` are in execution order; the
    schedules take turns.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        world: World,
        options: Options,
        schedules: Mapping[str, type[Schedule]],
        streams: Streams,
    ) -> None:
        self.layers, self.world, self.options, self.schedules = layers, world, options, dict(schedules)
        self.streams, self.plans = streams, ExitStack()
        self.split = split_calls(layers)  # layer calls with a two-part backward pass
        self.dtype = flat_dtype(layers)
        self.route, self.proof = chosen_route(options, name_of(self.dtype), self.schedules, world.transport.hosts)
        self.check_tree()
        self.check_algorithm(options.algorithm)
        self.wire = DTYPES[options.flat_type(self.route, name_of(self.dtype))]
        ownership = Ownership(options.optimizer, options.weights)
        self.layout = layout_of(layers, self.wire, world.size, whole=ownership.whole or self.route.whole)
        self.route.check_shapes(self.layout.shapes)
        costs = [each.cost(options.optimizer) for each in of_tensors(layers, self.layout)]
        self.owners = ownership.owners(world.size, costs)  # the rank that updates each part of a bucket

    def check_tree(self) -> None:
        """Share out the micro-batches of ``invariant``; without it each rank has one. Raises ValueError."""
        options, size = self.options, self.world.size
        self.shares = tuple(range(rank, rank + 1) for rank in range(size))
        if options.invariant is None:
            return
        self.shares = shares(options.invariant, size)
        if any(map(is_exchanging, self.layers)):
            raise ValueError("invariant must be left out: layers exchange data, so micro-batches depend on others")
        types = {name_of(each.value.dtype) for layer in self.layers for each in trained(layer)}
        if len(types) > 1:
            raise ValueError(f"invariant needs parameters of one type, not of {', '.join(types)}")

    @property
    def micro_batches(self) -> range:
        return self.shares[self.world.rank]

    @property
    def passes(self) -> int:
        """Return the passes of an iteration on the rank that has most."""
        return self.options.accumulate * max(map(len, self.shares))

    def check_algorithm(self, algorithm: str) -> None:
        """Check that the algorithm has the route's collectives and supports this transport. Raises ValueError."""
        route = self.route
        for name, schedule in self.schedules.items():
            stages = [stage for each in schedule.collectives for stage in route.collectives(each)]
            wanted = dict.fromkeys(stage.name for stage in stages if stage.algorithm(algorithm) == algorithm)
            try:
                check_algorithm(algorithm, self.world.transport, *wanted)
            except ValueError as error:
                by = f" on the route {route.name!r}" * (route.name != "full")
                raise ValueError(f"schedule {name!r}{by} takes {' and '.join(wanted)}: {error}") from None

    def allocate(self, buckets: Cut) -> None:
        """Bind the parameters to the flat buffer.

        Side buffers are in its slab; between hosts they may need more (a bucket, up to 1 MiB, for each peer). Other
        ranks of the host can reach it if the algorithm uses that. Otherwise it is private, because MPI libraries are
        slower in shared memory, and on the model's device.
        """
        options, world = self.options, self.world
        self.buckets = buckets
        with self.streams.compute.use():
            nbytes = Arena.nbytes(self.layout, self.dtype, self.wire) + PLANS_BYTES
            if options.device == "cpu" and wants_shared(options.algorithm, world.transport.hosts):
                self.slab = Slab(world.transport.allocate, nbytes, growth=PLANS_BYTES)
            else:
                self.slab = Slab.beside(self.streams.put(np.zeros(1)), nbytes, growth=PLANS_BYTES)
            self.arena = Arena(
                self.layers,
                self.layout,
                wire=self.wire,
                optimizer=options.optimizer,
                learning_rate=options.learning_rate,
                route=self.route,
                rank=world.rank,
                hosts=world.transport.hosts,
                owners=self.owners,
                slab=self.slab,
                put=self.streams.put,
            )
        complaints: list[str] = []
        self.calls = [LayerCall(number, layer, self.arena, complaints) for number, layer in enumerate(self.layers)]

    def open(self, world: World, engine: Engine, loss: Loss) -> None:
        """Make the plans and the trainers."""
        options, self.world = self.options, world
        self.fabric = LiveFabric(self.buckets, self.arena, world, engine, slab=self.slab, **options.plans)
        self.fabric.common = self.proof.common
        self.plans.callback(self.fabric.free)
        if options.elastic:
            from dear_mpi.training.kept import Kept  # few sessions are elastic

            self.kept = [Kept(bound, world.transport, self.plans) for bound in self.fabric.bound.values()]
        self.loss_scale: LossScale | None = None
        if options.judged:
            from dear_mpi.training.fabric.statistic import LossScale  # few sessions look at all gradients

            self.loss_scale = LossScale() if options.loss_scale == "dynamic" else None
            self.fabric.judge(options.statistics(self.loss_scale))
        own = None if options.invariant is None else self.micro_batches
        self.meter = LossMeter(self.fabric, own, options.invariant or 0)
        self.plans.callback(self.meter.plan.free)
        how: Any = {"accumulate": options.accumulate, "debug": options.debug}
        tree = tree_of(self.route)
        how["leaves"] = tree.leaves(self.micro_batches) if tree else ()
        self.trainers = {
            name: Trainer(self.calls, loss, self.meter, *self.begun(name), **how) for name in self.schedules
        }

    @property
    def done(self) -> int:
        """Return the number of iterations done."""
        return next(iter(self.trainers.values())).done

    @cached_property
    def prices(self) -> WirePrices:
        """Return the prices of collectives, once measured."""
        from dear_mpi.training.fabric.plan_cost import WirePrices  # few sessions ask

        return WirePrices(self.fabric)

    def begun(self, name: str) -> tuple[Schedule, Rules]:
        """Return a schedule on these buckets with its plans, and its rule book. Collective."""
        schedule = self.schedules[name](self.fabric)
        self.fabric.prepare((*schedule.collectives, *schedule.extras))
        return schedule, self.rules(name, self.buckets)

    def rules(self, name: str, buckets: Cut) -> Rules:
        return Rules(name, buckets, self.schedules[name], judged=self.options.judged, route=self.route)

    def cut(self, buckets: Cut) -> None:
        self.buckets = buckets
        if self.fabric.late:
            self.settle()
        self.fabric.cut(buckets)
        for name, trainer in self.trainers.items():
            trainer.schedule, trainer.rules = self.begun(name)

    def switch(self, algorithm: str) -> None:
        """Continue with another algorithm after a flush: all plans are made anew. Collective."""
        self.options, fabric = replace(self.options, algorithm=algorithm), self.fabric
        vars(self).pop("prices", None)
        fabric.free_plans(lambda key: True)
        fabric.options |= {"algorithm": algorithm, "slab": fabric.options["slab"].another()}
        for trainer in self.trainers.values():
            fabric.prepare((*trainer.schedule.collectives, *trainer.schedule.extras))

    def share_out(self, weights: Weights | None) -> None:
        """Continue with other rank speeds after a flush."""
        self.owners = self.arena.owners = replace(self.owners, weights=weights)
        self.cut(self.buckets)

    def flush(self) -> None:
        for trainer in self.trainers.values():
            with np.errstate(all="ignore"):
                trainer.flush()
                trainer.check(over=True)

    def settle(self) -> None:
        """End an open sync interval after a flush: all ranks get the average of their values.

        An outer optimiser takes no part: its momentum would change the values.
        """
        fabric, route = self.fabric, self.route
        at_end = fabric.iteration % route.period == 0 and not route.lags
        if route.period == 1 or fabric.iteration <= route.begin or at_end or fabric.settled == fabric.iteration:
            return
        fabric.settled = fabric.iteration  # averaging equal values again may change bits
        for bucket, handle in fabric.late.items():
            fabric.wait_for(handle)
            for stage in route.last:
                if stage.after:
                    fabric.run(stage, bucket, 1.0)
        fabric.late.clear()
        how: dict[str, Any] = {"algorithm": "auto", "op": "average", "alike": True}
        with make_plan("all_reduce", self.arena.values, self.world.transport, **how) as plan:
            plan()
        self.arena.begin_buffers()
        for bound in fabric.bound.values():
            bound.unpack()

    def restored(self, iterations: int, updates: int, loss_scale: LossScale | None) -> None:
        self.fabric.restored(iterations, updates)
        for trainer in self.trainers.values():
            trainer.done = iterations
        if self.loss_scale is not None and loss_scale is not None:
            vars(self.loss_scale).update(vars(loss_scale))

    def leave(self) -> None:
        """Let other groups train the layers from now on."""
        if "arena" in vars(self):
            self.arena.over = True
