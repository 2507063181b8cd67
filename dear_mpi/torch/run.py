"""Run the passes of a user's loop as iterations of a session: modules start, gradients come, a step is taken.

    DistributedOptimizer    the user's side: hooks, steps, errors of use
      Run                   this file: turns hooks into the events of an iteration
        Session             memory, schedule, engine and plans, as for our own layers; its passes are not used

call 0: embedding | call 1: block 0 ...      a **layer call** begins when a module starts that needs parameters
calls 0 1 2 | 3 4 5 | 6                      **borders** 0, 3 and 6, where buckets begin: hooks call the schedule
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import wraps
from operator import is_
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dear_mpi.collectives.program.errors import AgreedError, RanksLost, lost_in
from dear_mpi.kernels.array import use_gpu
from dear_mpi.ranks.streams import Streams, cuda_streams, host_streams
from dear_mpi.torch.sums import ANEW, Buffers, Tally
from dear_mpi.torch.tensors import TorchParameter
from dear_mpi.torch.underway import places_of, under_way
from dear_mpi.training.attendance import END
from dear_mpi.training.fabric.fabric import LOSS
from dear_mpi.training.fabric.live import Engine
from dear_mpi.training.session import Session
from dear_mpi.training.trainer import Trainer

if TYPE_CHECKING:
    from dear_mpi.torch.optimizer import DistributedOptimizer


@dataclass(eq=False)
class Call:
    """A layer for the session: the parameters that are needed from a module's start on."""

    number: int
    parameters: list[TorchParameter] = field(default_factory=list)
    missing: set[TorchParameter] = field(default_factory=set)  # those that wait for a gradient of this backward pass


def on_stream(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def run(self: Run, *given: Any) -> None:
        # Autograd has a thread for each GPU. Values that are not finite are the user's.
        with self.intact(), self.stream.use(), np.errstate(all="ignore"):
            method(self, *given)

    return run


class RunSession(Session):
    """A session that tells its run of each new group: at first, and after ranks have died."""

    def __init__(self, run: Run, *given: Any, **named: Any) -> None:
        self.run = run
        super().__init__(*given, **named)

    def open(self, engine: Engine) -> None:
        super().open(engine)
        self.run.adopt(self)


class Run:
    """A session whose passes the user runs; the owner's module has run forward and backward once."""

    def __init__(self, owner: DistributedOptimizer) -> None:
        self.owner, self.model, self.updates, self.lock = owner, owner.model, owner.updates, RLock()
        self.find_calls()
        self.trained = [(name, each, each.requires_grad) for name, each in self.model.named_parameters()]
        self.note_members()
        self.kinds = {kind: under_way(kind, self.finish) for kind in {torch.Tensor, *map(type, self.of)}}
        self.session = RunSession(
            self,
            self.calls,
            self.model,
            owner.world,
            optimizer=self.updates,
            name="DistributedOptimizer",
            streams=self.open_streams,
            **owner.options,
        )

    def adopt(self, session: RunSession) -> None:
        """Take over a session's new group. Collective."""
        self.session, self.group = session, session.group
        self.stream, self.world = self.group.streams.compute, session.world
        self.parts = session.options.invariant or self.world.size  # gradients that an average is over
        self.used: set[TorchParameter] = set()  # by earlier micro-batches of this rank
        self.trainer: Trainer = self.group.trainers[session.last]
        self.trainer.running = len(self.calls)  # until a pass begins
        # One rank has nothing to send, and updates by the gradients where autograd left them.
        changed = self.group.arena.wire is not self.group.arena.grads or session.options.statistic is not None
        self.alone = self.world.size == 1 and self.group.route.name == "full" and not changed and not self.owner.elastic
        self.trainer.meter = self.tally = Tally(self.group, self.updates, alone=self.alone)
        self.updates.wait = self.tally.wait
        if self.group.arena.sharded:
            self.updates.gather = self.world.transport.gather_values
        sends = self.owner.broadcast_buffers and self.world.size > 1
        some = sends and any(each.nbytes for each in self.model.buffers())
        self.buffers = Buffers(self.model, self.group) if some else None
        self.paused: dict[TorchParameter, tuple[type, int]] = {}
        self.find_borders()

    def find_borders(self) -> None:
        """Find the calls at which a bucket begins: schedules wait there in forward, and send there in backward.

        Elsewhere a hook only notes the time. Between operations of PyTorch code has left the caches, and calling a
        schedule takes 0.1 ms.
        """
        self.buckets = self.group.fabric.buckets
        self.borders = {0, *(call.number for call in self.calls if self.buckets.completed_by(call.number))}
        self.next_border, self.latest = 0, -1  # in forward; the last call that began
        self.forward_marks: dict[int, Any] = {}  # by call
        self.backward_marks: list[tuple[Call, Any]] = []  # of calls that the trainer has not heard of
        self.lowest_sent = len(self.calls)

    def find_calls(self) -> None:
        """Make a layer call for each module that needs parameters, in the order of one rank: branches may differ."""
        owner = self.owner
        modules = [*owner.model.modules()]
        orders = owner.world.gather_values([modules.index(each) for each in owner.order if each in modules])
        order: list[int] = next(filter(None, orders), [])  # a rank with an empty batch has none
        place = {modules[number]: at for at, number in enumerate(order)}
        # A parameter is needed by its own modules, and by those that started last around them.
        needed: dict[Any, list[Any]] = {}
        around: dict[str, Any] = {}
        for name, module in owner.model.named_modules(remove_duplicate=False):
            around[name] = module if module in place else around.get(name.rpartition(".")[0], owner.model)
            for each in module.parameters(recurse=False):
                if each in owner.names:
                    needed.setdefault(each, []).extend((module, around[name]))
        firsts = {each: min((place[one] for one in users if one in place), default=0) for each, users in needed.items()}
        calls = {first: Call(number) for number, first in enumerate(sorted({*firsts.values()}))}
        self.calls = [*calls.values()]
        self.of = self.updates.wrapped
        self.call_of: dict[Any, int] = {}  # the call that a module begins, with all before it
        for tensor, users in needed.items():
            call = calls[firsts[tensor]]
            parameter = self.of[tensor] = TorchParameter(owner.names[tensor], tensor, call)
            call.parameters.append(parameter)
            self.call_of |= {module: max(call.number, self.call_of.get(module, 0)) for module in users}

    def open_streams(self, device: str) -> Streams:
        if device == "cpu":
            return host_streams()
        use_gpu(self.owner.device.index)
        return cuda_streams(torch.cuda.current_stream(self.owner.device).cuda_stream)

    @contextmanager
    def intact(self) -> Iterator[None]:
        """Continue with the survivors if ranks die inside, and raise RanksLost with the step to repeat.

        Refuse to continue after a step that was not taken: parameters are those before it, on all ranks.
        """
        if failed := self.tally.error:
            raise AgreedError(f"an earlier step() failed ({failed}): {ANEW}")
        try:
            with self.session.survival:
                try:
                    yield
                except Exception as error:
                    if lost_in(error) or self.tally.error:
                        for parameter in [*self.paused]:
                            parameter.tensor.__class__ = self.paused.pop(parameter)[0]
                    raise
        except RanksLost:
            self.owner.begin_anew()
            raise

    # The events of an iteration.

    @on_stream
    def begin(self) -> None:
        self.session.check_open()
        self.look()
        self.session.attendance.steps += 1
        if not self.alone:
            self.trainer.begin_iteration()
            self.trainer.begin_pass()
            self.next_border = 0
            self.forward_marks.clear()

    def before_forward(self, call: int) -> None:
        if call >= self.next_border:
            self.enter(call)
        elif call > self.latest:
            mark = self.group.fabric.now()
            self.forward_marks |= dict.fromkeys(range(self.latest + 1, call + 1), mark)  # those that were skipped
            self.latest = call

    @on_stream
    def enter(self, call: int) -> None:
        first = self.trainer.running + 1
        self.trainer.before_forward(call, self.forward_marks)
        self.latest = call
        self.next_border = min((each for each in self.borders if each > call), default=len(self.calls))
        self.show(self.calls[first : self.next_border])

    @on_stream
    def begin_backward(self) -> None:
        if self.alone:
            return
        if (last := len(self.calls) - 1) > self.trainer.running:
            self.enter(last)
        self.trainer.end_forward()
        if self.trainer.last_part:
            self.trainer.fabric.launch_act(LOSS, lambda: None)  # an order expects it
            if self.buffers is not None:
                self.buffers.start()
        for call in self.calls:
            call.missing = set(call.parameters)
        self.backward_marks.clear()
        self.lowest_sent = len(self.calls)
        self.trainer.begin_backward()
        self.trainer.before_backward(len(self.calls) - 1)

    def note_gradient(self, tensor: Any) -> None:
        """Note a parameter's complete gradient; copy and send the gradients of buckets that are complete."""
        parameter = self.of[tensor]
        if parameter not in parameter.call.missing:
            advice = "checkpoints must be of the kind use_reentrant=False"
            raise ValueError(f"parameter {parameter.name} has a gradient twice in one backward pass: {advice}")
        self.complete(parameter)

    def complete(self, parameter: TorchParameter) -> None:
        call = parameter.call
        call.missing.remove(parameter)
        if not call.missing:
            self.backward_marks.append((call, self.group.fabric.now()))
            if call.number in self.borders or call.number > self.lowest_sent:
                self.hand_over()

    def hand_over(self) -> None:
        """Copy the gradients of these layer calls to the flat buffer, and tell the trainer.

        Those of a micro-batch, except the last, are taken from the user: the next ones must not be added to them.
        """
        for parameter in (each for call, _ in self.backward_marks for each in call.parameters):
            if (grad := parameter.tensor.grad) is None:
                parameter.gradient.zero_()
            else:
                torch.mul(grad.to_dense(), 1 / self.parts, out=parameter.gradient)
                if not self.trainer.last_part:
                    self.used.add(parameter)
                    parameter.tensor.grad = None
        self.wrote()

    @on_stream
    def wrote(self) -> None:
        for call, end in self.backward_marks:
            self.trainer.wrote(call.number, end)
        self.lowest_sent = min(self.lowest_sent, *(call.number for call, _ in self.backward_marks))
        self.trainer.begin_s = self.group.fabric.now()
        self.backward_marks.clear()

    def end_backward(self) -> None:
        """Send what is missing: it has no new gradient."""
        if self.alone:
            return
        for call in reversed(self.calls):
            for parameter in list(call.missing):
                self.complete(parameter)
        if not self.trainer.last_part:
            self.trainer.begin_pass()
            self.next_border = 0
            self.forward_marks.clear()
            return
        for parameter in self.used:
            if parameter.tensor.grad is None:  # it has a gradient, though not in the last micro-batch
                parameter.tensor.grad = torch.zeros_like(parameter.tensor)
        self.used.clear()

    @on_stream
    def average(self, tokens: float | None) -> None:
        """Complete the averages, and hand them to the user."""
        self.tally.start(tokens)
        if self.alone:
            self.tally.wait()
            for grad in (tensor.grad for tensor in self.of if tokens is not None):
                if grad is not None:
                    grad.mul_(self.updates.factor)
            return
        self.updates.handing_over = True
        try:
            self.trainer.end_backward()  # some schedules update here
            self.trainer.flush()
        finally:
            self.updates.handing_over = False

    @on_stream
    def end(self, tokens: float | None) -> None:
        if self.alone:
            self.average(tokens)
            self.end_by_user()
            return
        self.tally.start(tokens)
        self.trainer.end_backward()
        self.rest()

    @on_stream
    def end_by_user(self) -> None:
        self.group.arena.read()
        self.updates.step_from_user()
        for bound in self.group.fabric.bound.values():
            bound.unpack()
        self.rest()

    def rest(self) -> None:
        """Decide buckets and orders, then wait for a use of a parameter whose update is in flight."""
        if self.alone:
            return
        self.trainer.end_iteration()
        if self.buffers is not None:
            self.buffers.take()
        self.session.decisions.look(self.session.last)
        if self.group.fabric.buckets is not self.buckets:
            self.find_borders()
        if not self.trainer.rules.idle:
            for parameter in self.of.values():
                tensor = parameter.tensor
                self.paused[parameter] = type(tensor), tensor._version
                tensor.__class__ = self.kinds[type(tensor)]

    # Between steps.

    def show(self, calls: Iterable[Call]) -> None:
        """Give the parameters of these layer calls their own class: they are up to date."""
        for parameter in (each for call in calls for each in call.parameters) if self.paused else ():
            if parameter in self.paused:
                parameter.tensor.__class__, version = self.paused.pop(parameter)
                if parameter.tensor._version != version:
                    what = "was changed through another view while its update was in flight: call flush() before"
                    raise ValueError(f"parameter {parameter.name} {what}")

    @on_stream
    def finish(self) -> None:
        """Complete the updates in flight, because a parameter is used, perhaps only on this rank."""
        with self.lock:
            if self.paused:
                self.trainer.finish()
                self.show(self.calls)

    @on_stream
    def flush(self) -> None:
        if not self.trainer.rules.all_started:  # some gathers start on all ranks together
            self.trainer.flush()
        self.finish()

    @on_stream
    def agree_to_end(self) -> None:
        self.flush()
        self.session.finish()

    def note_members(self) -> None:
        self.places = places_of(self.model)
        self.tables = [table for each in self.model.modules() for table in (each._modules, each._parameters)]
        self.members = [each for table in self.tables for each in table.values()]

    def look(self) -> None:
        """Refuse a model with other parameters than at the start."""
        with torch._C.DisableTorchFunctionSubclass():
            for name, tensor, trained in self.trained:
                if tensor.requires_grad != trained:
                    raise ValueError(f"parameter {name} was {'' if trained else 'un'}frozen later: {ANEW}")
            for parameter in self.of.values():
                if parameter.tensor.data_ptr() != parameter.address:
                    what = f"parameter {parameter.name} was bound to other memory"
                    if (dtype := parameter.tensor.dtype) != parameter.gradient.dtype:
                        raise ValueError(f"{what}, of type {dtype}, as by half() or to(): {ANEW}")
                    raise ValueError(f"{what}: use copy_ instead")
        members = [each for table in self.tables for each in table.values()]
        if len(members) != len(self.members) or not all(map(is_, members, self.members)):
            before = self.places.items()
            self.note_members()  # modules without parameters may be others
            if changed := self.places.items() ^ before:
                names = ", ".join(sorted({name for name, _ in changed}))
                raise ValueError(f"{names:.99} of the model were added, removed or replaced: {ANEW}")

    def close(self) -> None:
        failed = self.tally.error
        with suppress(AgreedError) if failed else nullcontext(), self.session.stack:
            self.session.closed = True
            if failed:
                raise failed  # plans may be under way
            self.session.attendance.meet(END)
            self.flush()
