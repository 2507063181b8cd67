"""A session: layers, a loss and an optimiser, trained under a schedule on all ranks. The front door of this room.

with Session(layers, loss, comm, schedule="dear", optimizer=Adam(lr=1e-3)) as session:
    for x, targets in batches:
        print(session.step(x, targets))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from dear_mpi.collectives import transport_of
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.program.errors import AgreedError, CollectiveError
from dear_mpi.collectives.program.user_file import source_text
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.patience import THREADS, patient
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES, name_of
from dear_mpi.models.layer import Layer, Loss, in_order
from dear_mpi.ranks.streams import open_streams
from dear_mpi.ranks.world import World
from dear_mpi.training.checkpoints.checkpointed import Checkpointed
from dear_mpi.training.chosen_route import chosen_route
from dear_mpi.training.costs.wire_prices import WirePrices
from dear_mpi.training.decisions import Decisions, Start
from dear_mpi.training.fabric.engine import Engine
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.fabric.loss_meter import LossMeter
from dear_mpi.training.fabric.loss_scale import LossScale
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.slab import make_slab
from dear_mpi.training.facts import model_of
from dear_mpi.training.fusion.policies import fused
from dear_mpi.training.layer_use import layer_uses
from dear_mpi.training.line.arena import Arena
from dear_mpi.training.line.bucket import Cut
from dear_mpi.training.line.parameters import layout_of, line_dtype
from dear_mpi.training.line.shards import Shards
from dear_mpi.training.log.times import Times
from dear_mpi.training.options import Options
from dear_mpi.training.rehearse import rehearse
from dear_mpi.training.schedules import MINE, find_schedules
from dear_mpi.training.trainer import Trainer

S = TypeVar("S", bound="Session")
PARAMETERS = "parameters (SHA-256; give all ranks one seed, or the values of rank 0)"  # said where ranks differ


class Session(Checkpointed):
    """Trains a model on all ranks. Constructing is collective, and so is every method unless it says that it is not.

    A context manager: leaving it flushes, ends the engine, and gives all plans back. After an error of this rank alone
    the others would wait for ever: ``run_world`` then ends the job, and so does ``python -m mpi4py script.py``.

    Args:
        layers: with ``parameters``, ``forward(x)`` and ``backward(dy)``, see ``dear_mpi.models.layer``.
        loss: with ``forward(outputs, targets)`` and ``backward(scale)``, see there.
        comm: an mpi4py communicator, a ``Transport`` or a ``World``; one session at a time may use it.
        uses: the numbers of the layers in the order in which they run, if not the order of ``layers``; a layer may run
            several times.
        schedules: all that take turns on the model, if it is not one alone.
        facts: more that must be equal on all ranks, by name.
        options: see ``Options``.

    Raises:
        ArgumentError: an argument is not allowed, on this rank or on another one.
        MismatchError: the ranks differ in their options or in their parameters.
    """

    trainer_kind: Callable[..., Trainer] = Trainer
    threads = THREADS

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: Loss,
        comm: Any,
        *,
        uses: Sequence[int] | None = None,
        schedules: Sequence[str] = (),
        facts: Mapping[str, Any] | None = None,
        name: str = "session",
        **options: Any,
    ) -> None:
        self.world = comm if isinstance(comm, World) else World(transport_of(comm))
        self.layers, self.loss, self.name, self.plans = tuple(layers), loss, name, ExitStack()

        def build() -> dict[str, Any]:
            self.options = Options.of(options)
            if isinstance(schedules, str) or not all(isinstance(each, str) for each in schedules):
                raise ValueError(f"schedules must be a sequence of names, not {schedules!r}")
            self.schedules = find_schedules(schedules or [self.options.schedule])
            return {**(facts or {}), **self.build(uses)}

        with ExitStack() as stack:
            stack.callback(self.leave)
            agree(self.world.transport, name, build)
            transport = patient(self.world.transport, self.threads, runner_of(self.options.algorithm))
            self.world = replace(self.world, transport=transport)
            stack.enter_context(self.streams.compute.use())
            stack.push(self.free)
            self.engine = stack.enter_context(Engine(self.streams))  # which ends before its plans are freed
            self.open(self.engine)
            self.stack, self.closed = stack.pop_all(), False

    def build(self, uses: Sequence[int] | None) -> dict[str, Any]:
        """Make all that needs no communication; return what must be equal on all ranks."""
        options, world = self.options, self.world
        self.streams = open_streams(options.device)
        layers = in_order(self.layers, uses)
        facts = options.facts() | {"model": model_of(layers, self.loss), PARAMETERS: self.parameters_sha256()}
        facts |= {"schedules": tuple(source_text(name, "schedule", MINE) for name in self.schedules)}
        dtype = line_dtype(layers)
        self.route, self.proof = chosen_route(options, name_of(dtype), self.schedules, world.transport)
        wire = DTYPES.get(options.wire or self.route.wire or "", dtype)
        self.layout = layout_of(layers, wire, world.size)
        self.decisions = Decisions(self)
        start, self.buckets = self.plan_cut(options.fusion)
        self.decisions.begin(start)
        with self.streams.compute.use():
            here = self.streams.put(np.zeros(1))
            nbytes = Arena.nbytes(self.layout, dtype, wire)
            self.slab = make_slab(nbytes, here, options.algorithm, world.transport)
            update: dict[str, Any] = {"optimizer": options.optimizer, "learning_rate": options.learning_rate}
            update |= {"ranks": Shards(world.rank, world.size), "sharded": self.route.update.shard}
            update["further"] = self.route.errors
            self.arena = Arena(layers, self.layout, wire=wire, slab=self.slab, put=self.streams.put, **update)
        self.uses = layer_uses(layers, self.arena)
        return facts

    def plan_cut(self, fusion: str) -> tuple[Start, Cut]:
        """What a fusion starts with, and its buckets, with which all schedules were rehearsed; not collective."""
        start = self.decisions.start_of(fusion)
        buckets = fused(start.fusion, self.layout)
        for name, schedule in self.schedules.items():
            rehearse(schedule, self.rules(name, buckets), len(self.layout.uses), accumulate=self.options.accumulate)
        return start, buckets

    def open(self, engine: Engine) -> None:
        """Make the plans and the trainers."""
        options = self.options
        how: dict[str, Any] = {**options.plans, "slab": self.slab}
        self.fabric = LiveFabric(self.buckets, self.route, self.arena, self.world, engine, **how)
        self.plans.callback(self.fabric.free)
        self.prices = WirePrices(self.fabric)
        self.loss_scale = LossScale() if options.loss_scale == "dynamic" else None
        if options.judged:
            self.fabric.judge(options.clip, self.loss_scale)
        self.meter = LossMeter(self.fabric, self.slab)
        self.plans.callback(self.meter.free)
        self.trainers = {name: self.trainer(name) for name in self.schedules}
        self.turn = next(iter(self.schedules))  # whose iteration was the last

    def trainer(self, name: str) -> Trainer:
        """A trainer with this schedule."""
        schedule, options = self.schedules[name](self.fabric), self.options
        self.fabric.prepare((*schedule.collectives, *schedule.extras))
        rules = self.rules(name, self.buckets)
        how: dict[str, Any] = {"accumulate": options.accumulate, "debug": options.debug}
        return self.trainer_kind(self.uses, self.loss, self.meter, schedule, rules, **how)

    def rules(self, name: str, buckets: Cut) -> Rules:
        """A new book for a schedule; not collective."""
        return Rules(name, buckets, self.schedules[name], judged=self.options.judged, route=self.route)

    def step(self, x: Array, targets: Array, *, total: int | None = None) -> float:
        """One iteration with the first schedule.

        Args:
            x, targets: this rank's part of the batch, arrays of the host.
            total: the number of targets in the whole batch. If it is not given, all ranks have as many as this one.

        Returns:
            The mean loss over the whole batch.

        Raises:
            TrainingError, ArgumentError: see ``Trainer.iteration``; or ``total`` is wrong.
        """
        expected = np.asarray(targets).size * self.world.size if total is None else total
        return self.iterate(next(iter(self.schedules)), x, targets, expected)[0]

    def iterate(self, schedule: str, x: Array, targets: Array, total: int) -> tuple[float, Times]:
        """One iteration with a schedule, after a flush if the last one was another; see ``Trainer.iteration``."""
        self.check_open()
        if schedule != self.turn:
            self.flush()
            self.turn = schedule
        x, targets = (self.streams.put(np.asarray(array)) for array in (x, targets))
        with np.errstate(all="ignore"):  # what is not finite is looked for, and said once
            found = self.trainers[schedule].iteration(x, targets, total)
        self.decisions.look(schedule)
        return found

    def flush(self) -> None:
        """Finish what is under way: afterwards all parameters are up to date. Raises as the iteration before."""
        for trainer in self.trainers.values():
            with np.errstate(all="ignore"):
                trainer.flush()
                trainer.check()

    def cut(self, fusion: str) -> None:
        """Go on with other buckets, while all memory stays where it is; ArgumentError if the policy is not allowed."""
        self.check_open()
        self.flush()
        found: list[tuple[Start, Cut]] = []

        def plan() -> dict[str, Any]:
            found.append(self.plan_cut(fusion))
            return {"fusion": fusion}

        agree(self.world.transport, self.name, plan)
        self.options = replace(self.options, fusion=fusion)
        ((start, self.buckets),) = found
        self.fabric.cut(self.buckets)
        for name, trainer in self.trainers.items():
            trainer.schedule, trainer.rules = self.schedules[name](self.fabric), self.rules(name, self.buckets)
            self.fabric.prepare((*trainer.schedule.collectives, *trainer.schedule.extras))
        self.decisions.begin(start)

    def check_open(self) -> None:
        if self.closed:
            raise CollectiveError("the session is over: its plans were given back when its block was left")

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with self.stack:  # which sees what is raised here
            self.closed = True
            if error is not None:
                raise error
            self.check_alike()

    def leave(self) -> None:
        """Let other sessions train the layers from now on."""
        if "arena" in vars(self):
            self.arena.over = True

    def free(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Give the plans back; but not after an error of one rank alone, for then the peers may never answer."""
        if (error is None or isinstance(error, AgreedError)) and not self.engine.thread.is_alive():
            self.plans.close()
