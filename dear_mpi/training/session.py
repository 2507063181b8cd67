"""Train layers with a loss, an optimiser and a schedule on all ranks. Start reading here.

with Session(layers, loss, comm, schedule="dear", optimizer=Adam(lr=1e-3)) as session:
    for x, targets in batches:
        print(session.step(x, targets))
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dear_mpi.collectives import transport_of
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.launch.launcher import end_child, no_child_leaves
from dear_mpi.collectives.program.errors import AgreedError, ArgumentError, CollectiveError
from dear_mpi.collectives.program.user_file import source_text
from dear_mpi.collectives.transports.agree import agree, said_by_rank_0
from dear_mpi.collectives.transports.wait_policy import THREADS, with_wait_policy
from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Layer, Loss, Parameter, in_order
from dear_mpi.ranks.streams import Streams, open_streams
from dear_mpi.ranks.world import World
from dear_mpi.training.attendance import END, Attendance
from dear_mpi.training.buckets.layout import sha256
from dear_mpi.training.events import Times
from dear_mpi.training.fabric.live import Engine, check_process, checksum
from dear_mpi.training.fusion.decisions import Decisions
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.options import Options
from dear_mpi.training.schedules import MINE, find_schedules

S = TypeVar("S", bound="Session")
REPORT_S = 30.0
LONGEST = 300  # characters of a model's description
PARAMETERS = "parameters (SHA-256; give all ranks one seed, or the values of rank 0)"  # for messages
DIFFER = "the ranks no longer train one model, as where forward changes a parameter in place"


class Session:
    """Train a model on all ranks. The constructor and all methods are collective unless documented otherwise.

    Use it as a context manager: leaving it flushes, ends the engine and frees all plans. If one rank leaves early, the
    others end the job. Ranks that have waited 30 s for another one report it.

    Args:
        layers: with ``parameters``, ``forward(x)`` and ``backward(dy)``, see ``dear_mpi.models.layer``.
        loss: with ``forward(outputs, targets)`` and ``backward(scale)``, see there.
        comm: an mpi4py communicator, a ``Transport`` or a ``World``; one session at a time may use it.
        calls: indices of the layers in execution order, perhaps several times; default: as in ``layers``.
        schedules: several schedules that take turns on the model.
        streams: opens the streams of a device.
        options: see ``Options``.

    Raises:
        ArgumentError: an argument is not allowed, on this rank or on another one.
        MismatchError: the ranks differ in their options or parameters.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: Loss,
        comm: Any,
        *,
        calls: Sequence[int] | None = None,
        schedules: Sequence[str] = (),
        name: str = "session",
        streams: Callable[[str], Streams] = open_streams,
        **options: Any,
    ) -> None:
        self.layers, self.loss, self.name = tuple(layers), loss, name
        self.execution, self.complete = calls, False  # complete: all ranks have finished
        self.survival: Any = nullcontext()
        if options.get("elastic"):
            from dear_mpi.training.elastic import Survival, elastic_world  # few sessions are elastic

            self.world, below = elastic_world(comm)
            self.survival = Survival(self, below)
        else:
            self.world = comm if isinstance(comm, World) else World(transport_of(comm))
        self.open_streams = streams

        def build() -> dict[str, Any]:
            self.options = Options.of(options)
            if isinstance(schedules, str) or not all(isinstance(each, str) for each in schedules):
                raise ValueError(f"schedules must be a sequence of names, not {schedules!r}")
            self.schedules = find_schedules(schedules or [self.options.schedule])
            self.layers = tuple(self.options.optimizer.adapted(self.layers))
            return self.build(calls)

        with ExitStack() as stack:
            stack.callback(self.leave)
            agree(self.world.transport, name, build)
            transport = with_wait_policy(self.world.transport, THREADS, runner_of(self.options.algorithm))
            self.world = replace(self.world, transport=transport)
            self.attendance = Attendance(transport, math.inf if isinstance(comm, World) else REPORT_S)
            stack.enter_context(self.group.streams.compute.use())
            stack.push(self.free)
            stack.push(self.end)
            self.engine: Engine = Engine(self.group.streams)
            stack.enter_context(self.attendance)
            self.open(self.engine)
            self.stack, self.closed = stack.pop_all(), False

    def build(self, calls: Sequence[int] | None) -> dict[str, Any]:
        """Make what needs no communication; return the facts that ranks compare."""
        layers = in_order(self.layers, calls)
        facts = self.options.facts() | {"model": model_of(layers, self.loss), PARAMETERS: self.parameters_sha256()}
        facts |= {"schedules": tuple(source_text(name, "schedule", MINE) for name in self.schedules)}
        streams = self.open_streams(self.options.device)
        self.group = WorkerGroup(layers, self.world, self.options, self.schedules, streams)
        self.decisions = Decisions(self.group, self.name)
        first = self.decisions.begin(self.decisions.planned(self.options.fusion))
        if self.options.elastic:
            from dear_mpi.training.elastic import check_elastic

            check_elastic(self.group, self.decisions)
        self.group.allocate(first)
        return facts

    def open(self, engine: Engine) -> None:
        self.group.open(self.world, engine, self.loss)
        self.last = next(iter(self.schedules))

    def step(self, x: Array, targets: Array, *, total: int | None = None) -> float:
        """Run one iteration with the first schedule; return the mean loss over the whole batch.

        Args:
            x, targets: this rank's part of the batch, host arrays.
            total: divisor of the summed loss, equal on all ranks: the targets of the whole batch that count. By
                default all ranks have as many as this one, or all micro-batches (``invariant``).

        Raises:
            TrainingError, ArgumentError, ValueError: see ``Trainer.iteration``; or ``total`` is wrong.
            RanksLost: ranks have died (``elastic``). Call ``step`` again, for the iteration with the number
                ``iterations``, and with this rank's new part of the batch.
        """
        size, whole = np.asarray(targets).size, self.options.invariant or self.world.size
        number = size * whole // len(self.micro_batches) if total is None else number_of_targets(total)
        return self.iterate(next(iter(self.schedules)), x, targets, number)[0]

    def iterate(self, schedule: str, x: Array, targets: Array, total: int) -> tuple[float, Times]:
        """Run one iteration with a schedule, after a flush if it changed; see ``Trainer.iteration``."""
        self.check_open()
        self.attendance.steps += 1
        with self.survival:
            self.complete = False
            if schedule != self.last:
                self.flush()
                self.last = schedule
            x, targets = (self.group.streams.put(np.asarray(array)) for array in (x, targets))
            with np.errstate(all="ignore"), no_child_leaves():  # checks report non-finite values once
                found = self.group.trainers[schedule].iteration(x, targets, total)
            self.decisions.look(schedule)
        return found

    def flush(self) -> None:
        """Finish pending work, so that parameters are up to date. Raises errors of the last iteration."""
        if not self.group.fabric.common:  # then ranks ask each other about their gradients
            self.attendance.meet("flush")
        with self.survival:
            self.group.flush()

    def finish(self) -> None:
        """Flush, and agree that training is complete: with ``elastic``, the last call in the block. Collective.

        Raises RanksLost if iterations must be repeated.
        """
        with self.survival:
            self.check_alike(END)
            if self.options.elastic:
                self.survival.transport.commit()
        self.complete = True

    def cut(self, fusion: str) -> None:
        """Continue with other buckets. Raises ArgumentError if the policy is not allowed."""
        self.check_open()
        if self.options.elastic:
            raise ArgumentError("cut must be left out of an elastic session: its states are kept by bucket")
        self.attendance.meet("cut")
        self.decisions.cut(fusion)

    def switch(self, algorithm: str) -> None:
        """Continue with another algorithm. Raises ArgumentError if it is not allowed, and keeps the old one."""
        self.check_open()
        if self.options.elastic or runner_of(algorithm) != runner_of(self.options.algorithm):
            raise ArgumentError(f"switch needs an inelastic session, and algorithms that run alike, not {algorithm!r}")
        self.attendance.meet("switch")
        self.flush()

        def check() -> dict[str, Any]:
            self.group.check_algorithm(algorithm)
            return {"algorithm": algorithm}

        agree(self.world.transport, self.name, check)
        try:
            self.group.switch(algorithm)
        except AgreedError:
            self.group.switch(self.options.algorithm)
            raise
        self.options = self.group.options
        self.decisions.prepare_turns()

    @property
    def parameters(self) -> list[Parameter]:
        """Return the parameters of all layers. Not collective."""
        return [parameter for layer in self.layers for parameter in layer.parameters]

    @property
    def iterations(self) -> int:
        """Return the number of iterations done. Not collective."""
        return self.group.done

    @property
    def micro_batches(self) -> range:
        """Return this rank's micro-batches, if ``invariant`` cuts each batch into as many equal ones; else its rank."""
        return self.group.micro_batches

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Return the speeds of all ranks, to split batches by; None if equal."""
        return self.group.owners.weights

    def parameters_sha256(self) -> str:
        """Return the SHA-256 of this rank's parameters. Not collective."""
        return sha256(parameter.value for parameter in self.parameters)

    def state(self, notes: Any = None) -> dict[str, Array]:
        """Flush and return all that ``load`` needs, as host arrays; ``notes`` may be any JSON value."""
        from dear_mpi.training.checkpoint import snapshot  # few sessions keep their state

        with self.survival:
            self.check_alike("state")
            return snapshot(self.group, self.parameters, notes)

    def load(self, state: dict[str, Array]) -> Any:
        """Continue from a state on rank 0; return its notes. Raises ArgumentError."""
        from dear_mpi.training.checkpoint import restore

        self.attendance.meet("load")
        return self.restored(lambda: restore(self.group, self.parameters, state, "checkpoint"))

    def save(self, path: str | Path, notes: Any = None) -> None:
        """Write the state to a file of rank 0, replacing an older one. Raises ArgumentError."""
        from dear_mpi.training.checkpoint import snapshot, write

        with self.survival:
            self.check_alike("save")
            state = snapshot(self.group, self.parameters, notes, keep=self.world.rank == 0)
            said_by_rank_0(self.world.transport, "save", lambda: write(Path(path), state))

    def resume(self, path: str | Path) -> Any:
        """Continue from a saved file; return its notes. Raises ArgumentError."""
        from dear_mpi.training.checkpoint import read, restore

        self.attendance.meet("resume")
        arrays: dict[str, Array] = {}

        def load() -> Any:
            said_by_rank_0(self.world.transport, "resume", lambda: arrays.update(read(Path(path))))
            return restore(self.group, self.parameters, arrays, f"checkpoint {str(path)!r}")

        return self.restored(load)

    def restored(self, load: Callable[[], Any]) -> Any:
        """Load a state; until it is complete, this rank has none."""
        with self.survival:
            if self.options.elastic:
                self.survival.loading = True
            found = load()
        if self.options.elastic:
            self.survival.loading = False
            self.survival.log[-1] = replace(self.survival.log[-1], iteration=self.iterations)
        return found

    def check_alike(self, place: str = "check_alike") -> None:
        """Flush, end an open sync interval, and check that all ranks reach one place with equal parameters.

        MismatchError names a parameter.
        """

        def facts() -> dict[str, str]:
            named = {f"parameter {number} ({each.name})": each.value for number, each in enumerate(self.parameters)}
            return {"call": place} | {name: f"checksum {checksum(value)}" for name, value in named.items()}

        with self.survival:
            self.attendance.meet(place)
            self.flush()
            self.group.settle()
            agree(self.world.transport, DIFFER, facts)

    def check_open(self) -> None:
        if self.closed:
            raise CollectiveError("the session is over: its plans were given back when its block was left")
        check_process(self.engine.process)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if os.getpid() != self.engine.process:
            end_child(error)
        with self.stack:  # handles exceptions raised here
            self.closed = True
            if error is not None:
                if self.options.elastic and not isinstance(error, AgreedError):
                    self.survival.transport.revoke()  # others must not wait for this rank
                raise error
            if not (self.options.elastic and self.complete):
                self.finish()

    def leave(self) -> None:
        if "group" in vars(self):
            self.group.leave()

    def end(self, *error: Any) -> None:
        """End the present engine, before its plans are freed."""
        self.engine.__exit__(*error)

    def free(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Free the plans, except after an error of one rank: its peers may never answer."""
        if (error is None or isinstance(error, AgreedError)) and not self.engine.thread.is_alive():
            self.group.plans.close()


def model_of(layers: Sequence[Layer], loss: Loss) -> str:
    """Describe the model, except the values of parameters."""
    parameters = [
        f"{number}: {parameter.name} {parameter.value.dtype}{list(parameter.value.shape)}"
        + " frozen" * (not parameter.trained)
        + " in its own memory" * (not parameter.rebind)
        for number, layer in enumerate(layers)
        for parameter in layer.parameters
    ]
    return shortened(f"{', '.join(parameters)}; of {', '.join(type(each).__name__ for each in (*layers, loss))}")


def shortened(text: str) -> str:
    """Return a text that ranks compare; a long one ends in a checksum."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... (checksum {zlib.crc32(text.encode()):08x})"


def number_of_targets(total: Any) -> int:
    """Convert a whole number, or a tensor with one. Raises ValueError."""
    with suppress(TypeError, ValueError, OverflowError):
        if int(total) == total and total >= 0:
            return int(total)
    raise ValueError(f"total must be a whole number, the targets of all ranks that count, not {total!r:.99}")
