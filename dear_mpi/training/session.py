"""A session: layers, a loss and an optimiser, trained under a schedule on all ranks. The front door of this room.

with Session(layers, loss, comm, schedule="dear", optimizer=Adam(lr=1e-3)) as session:
    for x, targets in batches:
        print(session.step(x, targets))
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dear_mpi.collectives import transport_of
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.array import Array, to_host
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.models.layer import Layer, Loss, Parameter, in_order
from dear_mpi.ranks.streams import open_streams
from dear_mpi.ranks.world import World
from dear_mpi.training.checkpoint import restore, resume, save, snapshot
from dear_mpi.training.fabric.engine import Engine
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.fusion import borders
from dear_mpi.training.line.arena import Arena, layout_of, line_dtype
from dear_mpi.training.line.bucket import Cut, cut
from dear_mpi.training.loss_meter import LossMeter
from dear_mpi.training.loss_scale import LossScale
from dear_mpi.training.memory import make_slab
from dear_mpi.training.options import Options
from dear_mpi.training.rehearse import check_schedules, rehearse
from dear_mpi.training.schedules import find_schedule
from dear_mpi.training.step import steps_of
from dear_mpi.training.trainer import Times, Trainer, TrainingError

__all__ = ["Session", "sha256"]

S = TypeVar("S", bound="Session")


class Session:
    """Trains a model on all ranks. Constructing is collective, and so are all methods but those that say otherwise.

    A context manager: leaving it ends the engine, and gives all plans back. After an error of this rank alone it ends
    the whole job, because the other ranks would wait for ever.

    Args:
        layers: with ``parameters``, ``forward(x)`` and ``backward(dy)``, see ``dear_mpi.models.layer``.
        loss: with ``forward(outputs, targets)`` and ``backward(scale)``, see there.
        comm: an mpi4py communicator, a ``Transport`` or a ``World``.
        order: the numbers of the layers in the order in which they run, if it is not that of ``layers``; a layer may
            run several times.
        schedules: all that take turns on the model, if it is not one alone.
        facts: more that must be equal on all ranks, by name.
        options: see ``Options``.

    Raises:
        ArgumentError: an argument is not allowed, on this rank or on another one.
        MismatchError: the ranks differ in their options or in their parameters.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: Loss,
        comm: Any,
        *,
        order: Sequence[int] | None = None,
        schedules: Sequence[str] = (),
        facts: Mapping[str, Any] | None = None,
        name: str = "session",
        **options: Any,
    ) -> None:
        self.world = comm if isinstance(comm, World) else World(transport_of(comm))
        self.layers, self.loss, self.name = tuple(layers), loss, name

        def build() -> dict[str, Any]:
            self.options = Options.of(options)
            self.schedules = tuple(schedules) or (self.options.schedule,)
            return {**(facts or {}), **self.build(order)}

        agree(self.world.transport, name, build)
        self.plans = ExitStack()
        with ExitStack() as stack:
            stack.enter_context(self.streams.compute.use())
            stack.enter_context(np.errstate(all="ignore"))  # what is not finite is looked for, and said once
            stack.push(self.free)
            self.open(stack.enter_context(Engine(self.streams)))  # which ends before its plans are freed
            self.stack = stack.pop_all()

    def build(self, order: Sequence[int] | None) -> dict[str, Any]:
        """Make everything that needs no communication; return what must be equal on all ranks."""
        options, world = self.options, self.world
        check_schedules(self.schedules, options.algorithm, world.transport)
        self.streams = open_streams(options.device)
        uses = in_order(self.layers, order)
        facts = {**asdict(options), "order": order, "parameters": self.parameters_sha256()}
        dtype = line_dtype(uses)
        wire = dtype if options.wire is None else DTYPES[options.wire]
        self.layout = layout_of(uses, wire, world.size)
        self.buckets = self.plan_cut(options.fusion, wire.itemsize)
        with self.streams.compute.use():
            here, nbytes = self.streams.put(np.zeros(1)), Arena.nbytes(self.layout, dtype, wire)
            self.slab = make_slab(nbytes, here, options.algorithm, world.transport)
            self.arena = Arena(
                uses, self.layout, wire=wire, optimizer=options.optimizer, slab=self.slab, put=self.streams.put
            )
        self.steps = steps_of(uses, self.arena)
        return facts

    def plan_cut(self, fusion: str, itemsize: int) -> Cut:
        """The buckets of a policy, with which all schedules were rehearsed; not collective."""
        buckets = cut(self.layout, borders(fusion, self.layout, itemsize), itemsize)
        for name in self.schedules:
            rehearse(name, find_schedule(name), buckets, len(self.layout.uses))
        return buckets

    def open(self, engine: Engine) -> None:
        """Make the plans and the trainers."""
        options = self.options
        self.fabric = LiveFabric(
            self.buckets,
            self.arena,
            self.world,
            engine,
            algorithm=options.algorithm,
            segment_bytes=options.segment_bytes,
            debug=options.debug,
            slab=self.slab,
        )
        self.plans.callback(self.fabric.free)
        self.loss_scale = LossScale() if options.loss_scale == "dynamic" else None
        if options.clip is not None or self.loss_scale is not None:
            self.fabric.judge(options.clip, self.loss_scale, self.slab)
        self.meter = LossMeter(self.fabric, self.slab)
        self.plans.callback(self.meter.free)
        self.trainers = {name: self.trainer(name) for name in self.schedules}

    def trainer(self, name: str) -> Trainer:
        """A trainer with this schedule."""
        schedule, options = find_schedule(name)(self.fabric), self.options
        self.fabric.prepare(schedule.collectives)
        return Trainer(self.steps, self.loss, self.meter, schedule, accumulate=options.accumulate, debug=options.debug)

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
        expected = targets.size * self.world.size if total is None else total
        loss, _ = self.iterate(self.schedules[0], x, targets, 1 / max(1, expected))
        if total is None and self.meter.targets != expected:
            found = f"{self.meter.targets} targets over all ranks, which is not {self.world.size} times as many as here"
            raise TrainingError(f"the batch has {found}, {targets.size}: ranks with unequal parts must give total=")
        return loss

    def iterate(self, schedule: str, x: Array, targets: Array, scale: float) -> tuple[float, Times]:
        """One iteration with one of the schedules; see ``Trainer.iteration``."""
        x, targets = map(self.streams.put, (x, targets))
        return self.trainers[schedule].iteration(x, targets, scale)

    def flush(self) -> None:
        """Finish what is under way: afterwards all parameters are up to date."""
        for trainer in self.trainers.values():
            trainer.schedule.flush()

    def cut(self, fusion: str) -> None:
        """Go on with other buckets; values, gradients and the optimiser's state stay where they are.

        Raises:
            ArgumentError: the policy is not allowed, or a schedule cannot run with its buckets.
        """
        self.flush()
        found: list[Cut] = []

        def plan() -> dict[str, Any]:
            found.append(self.plan_cut(fusion, self.arena.wire.itemsize))
            return {"fusion": fusion}

        agree(self.world.transport, self.name, plan)
        (self.buckets,) = found
        self.fabric.cut(self.buckets)
        for name, trainer in self.trainers.items():
            trainer.schedule = find_schedule(name)(self.fabric)
            self.fabric.prepare(trainer.schedule.collectives)

    def state(self, notes: Any = None) -> dict[str, Array]:
        """All that ``load`` needs, as arrays of the host, with anything that JSON can hold; ends with a flush."""
        return snapshot(self, notes)

    def load(self, state: dict[str, Array]) -> Any:
        """Go on from a state that rank 0 has; the notes in it. Raises ArgumentError if it is another model's."""
        return restore(self, state)

    def save(self, path: str | Path, notes: Any = None) -> None:
        """Write the state to a file of rank 0, which replaces an older one; ArgumentError if it cannot be written."""
        save(self, Path(path), notes)

    def resume(self, path: str | Path) -> Any:
        """Go on from such a file; the notes in it. Raises ArgumentError if it is not there, damaged, or another's."""
        return resume(self, Path(path))

    @property
    def parameters(self) -> list[Parameter]:
        """Those of all layers, in order."""
        return [parameter for layer in self.layers for parameter in layer.parameters]

    def parameters_sha256(self) -> str:
        """The SHA-256 of the bytes of this rank's parameters; not collective."""
        return sha256(parameter.value for parameter in self.parameters)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.flush()
        self.stack.__exit__(kind, error, trace)

    def free(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Give the plans back; but not after an error of one rank alone, for then the peers may never answer."""
        if error is None or isinstance(error, AgreedError):
            self.plans.close()


def sha256(arrays: Iterable[Array]) -> str:
    """The SHA-256 of the bytes of some arrays, in order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(to_host(array)).view("u1").data)
    return digest.hexdigest()
