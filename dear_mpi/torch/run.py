"""Run the passes of a user's loop as iterations of a session: modules start, gradients come, a step is taken.

call 0: embedding | call 1: block 0 ...      a **layer call** begins when a module starts that needs parameters
tally             | tokens, uses of each parameter |      one small all-reduce per step, after all gradients
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.kernels.array import Array, use_gpu
from dear_mpi.ranks.streams import Streams, cuda_streams, host_streams
from dear_mpi.torch.tensors import TorchParameter, dense, tensor_of
from dear_mpi.torch.underway import places_of, under_way
from dear_mpi.torch.updates import text_of
from dear_mpi.training.checkpoints.attendance import END
from dear_mpi.training.events import EXCHANGE
from dear_mpi.training.fabric.engine import Engine
from dear_mpi.training.fabric.order import LOSS
from dear_mpi.training.fabric.statistic import Norm
from dear_mpi.training.session import Session
from dear_mpi.training.trainer import Trainer

if TYPE_CHECKING:
    from dear_mpi.torch.optimizer import DistributedOptimizer

ANEW = "begin a new DistributedOptimizer for that"
EARLY = "updates shards while backward() runs, before step()"
FIRST = 4  # sums before the parameters' sums


@dataclass(eq=False)
class Call:
    """A layer for the session: the parameters that are needed from a module's start on."""

    parameters: list[TorchParameter]


class Clip(Norm):
    """Clip as ``torch.nn.utils.clip_grad_norm_`` does."""

    def factor(self, sums: Array) -> float:
        super().factor(sums)
        return self.of(1.0)

    def of(self, factor: float) -> float:
        """Return the factor of gradients that are to be multiplied by ``factor``, and then clipped."""
        return min(factor, (self.clip or 0.0) / (self.norm + 1e-6 / factor))


def on_stream(method: Callable[..., None]) -> Callable[..., None]:
    @wraps(method)
    def run(self: Run, *given: Any) -> None:
        # Autograd has a thread for each GPU. Values that are not finite are the user's.
        with self.group.streams.compute.use(), np.errstate(all="ignore"):
            method(self, *given)

    return run


class Run(Session):
    """A session whose passes the user runs; the owner's module has run forward and backward once."""

    faults: Sequence[str] = ()  # as a ``Model``

    def __init__(self, owner: DistributedOptimizer) -> None:
        self.owner, self.model, self.updates = owner, owner.model, owner.updates
        needed = needed_by(owner.model, owner.order, owner.names)
        place = {module: number for number, module in enumerate(owner.order)}
        firsts = {
            owner.names[each]: min((place[module] for module in modules if module in place), default=0)
            for each, modules in needed.items()
        }
        firsts = owner.world.gather_values(firsts)[0]  # rank 0's: branches may differ
        numbers = {first: number for number, first in enumerate(sorted(set(firsts.values())))}
        self.calls = [Call([]) for _ in numbers]
        self.of: dict[Any, tuple[int, TorchParameter]] = {}
        self.begins: dict[Any, int] = {}  # the call that a module begins, with all before it
        for tensor, modules in needed.items():
            name = owner.names[tensor]
            call, parameter = numbers[firsts[name]], TorchParameter(name, tensor)
            self.calls[call].parameters.append(parameter)
            self.of[tensor] = call, parameter
            self.updates.wrapped[tensor] = parameter
            self.begins |= {module: max(call, self.begins.get(module, 0)) for module in modules}
        self.places = places_of(owner.model)
        self.trained = [(name, each, each.requires_grad) for name, each in owner.model.named_parameters()]
        super().__init__(
            self.calls,  # type: ignore[arg-type]  # their passes are not called
            self,  # type: ignore[arg-type]
            owner.world,
            optimizer=owner.updates,
            name="DistributedOptimizer",
            **owner.options,
        )

    def open_streams(self, device: str) -> Streams:
        if device == "cpu":
            return host_streams()
        use_gpu(self.owner.device.index)
        return cuda_streams(torch.cuda.current_stream(self.owner.device).cuda_stream)

    def open(self, engine: Engine) -> None:
        self.passes = self  # type: ignore[assignment]
        super().open(engine)
        self.trainer: Trainer = self.group.trainers[self.last]
        self.scale = 1 / self.world.size
        self.trainer.meter = self.tally = Tally(self)
        self.updates.wait = self.tally.wait
        if self.group.arena.sharded:
            self.updates.gather = self.world.transport.gather_values
        kinds = {torch.Tensor, *(type(tensor) for tensor in self.of)}
        self.kinds = {kind: under_way(kind, self.finish) for kind in kinds}
        self.paused: dict[Any, tuple[type, int]] = {}
        # One rank has nothing to send, and updates by the gradients where autograd left them.
        changed = self.group.arena.wire is not self.group.arena.grads or self.options.statistic is not None
        self.alone = self.world.size == 1 and self.group.route.name == "full" and not changed
        self.trainer.running = len(self.calls)  # until a pass begins
        sends = self.owner.broadcast_buffers and self.world.size > 1
        some = sends and any(each.nbytes for each in self.model.buffers())
        self.buffers = Buffers(self) if some else None

    # The events of an iteration.

    @on_stream
    def begin(self) -> None:
        self.check_open()
        self.look()
        self.attendance.steps += 1
        if not self.alone:
            self.trainer.begin_iteration()
            self.trainer.begin_pass()

    def before_forward(self, call: int) -> None:
        if call > self.trainer.running:
            self.enter(call)

    @on_stream
    def enter(self, call: int) -> None:
        first = self.trainer.running + 1
        self.trainer.before_forward(call)
        self.show(self.calls[first : call + 1])

    @on_stream
    def begin_backward(self) -> None:
        if self.alone:
            return
        self.before_forward(len(self.calls) - 1)
        self.trainer.end_forward()
        self.trainer.fabric.launch_act(LOSS, lambda: None)  # an order expects it
        if self.buffers is not None:
            self.buffers.start()
        self.missing = [set(call.parameters) for call in self.calls]
        self.trainer.begin_backward()
        self.trainer.before_backward(len(self.calls) - 1)

    @on_stream
    def send(self, tensor: Any) -> None:
        """Copy a parameter's complete gradient to the flat buffer; send buckets that are complete."""
        call, parameter = self.of[tensor]
        if parameter not in self.missing[call]:
            advice = "checkpoints must be of the kind use_reentrant=False"
            raise ValueError(f"parameter {parameter.name} has a gradient twice in one backward pass: {advice}")
        self.copy(call, parameter)

    def copy(self, call: int, parameter: TorchParameter) -> None:
        grad = parameter.tensor.grad
        self.tally.own[self.tally.numbers[parameter.tensor]] = grad is not None
        if grad is None:
            parameter.gradient.zero_()
        else:
            torch.mul(grad.to_dense(), self.scale, out=parameter.gradient)
        self.missing[call].remove(parameter)
        if not self.missing[call]:
            self.trainer.wrote(call)

    @on_stream
    def end_backward(self) -> None:
        """Send what is missing: it has no new gradient."""
        if self.alone:
            return
        for call, missing in reversed([*enumerate(self.missing)]):
            for parameter in list(missing):
                self.copy(call, parameter)
        if self.group.arena.sharded and self.trainer.rules.all_started:
            raise ValueError(f"schedule {self.last!r} {EARLY}: take dear, or update='full'")

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
        self.trainer.end_backward()
        self.updates.handing_over = True
        self.trainer.flush()
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
        self.decisions.look(self.last)
        if not self.trainer.rules.idle:
            for tensor in self.of:
                self.paused[tensor] = type(tensor), tensor._version
                tensor.__class__ = self.kinds[type(tensor)]

    # Between steps.

    def show(self, calls: Iterable[Call]) -> None:
        """Give the parameters of these layer calls their own class: they are up to date."""
        for parameter in (each for call in calls for each in call.parameters) if self.paused else ():
            if parameter.tensor in self.paused:
                parameter.tensor.__class__, version = self.paused.pop(parameter.tensor)
                if parameter.tensor._version != version:
                    what = "was changed through another view while its update was in flight: call flush() before"
                    raise ValueError(f"parameter {parameter.name} {what}")

    @on_stream
    def finish(self) -> None:
        """Complete the updates in flight, because a parameter is used, perhaps only on this rank."""
        with self.owner.lock:
            if self.paused:
                self.trainer.finish()
                self.show(self.calls)

    @on_stream
    def flush(self) -> None:
        if not self.trainer.rules.all_started:  # some gathers start on all ranks together
            self.trainer.flush()
        self.finish()

    def look(self) -> None:
        """Refuse a model with other parameters than at the start."""
        with torch._C.DisableTorchFunctionSubclass():
            for name, tensor, trained in self.trained:
                if tensor.requires_grad != trained:
                    raise ValueError(f"parameter {name} was {'' if trained else 'un'}frozen later: {ANEW}")
                if tensor in self.of and tensor.data_ptr() != self.of[tensor][1].address:
                    raise ValueError(f"parameter {name} was bound to other memory: use copy_ instead")
        places = places_of(self.model)
        if places != self.places:
            names = ", ".join(sorted({name for name, _ in places.items() ^ self.places.items()}))
            raise ValueError(f"{names:.99} of the model were added, removed or replaced: {ANEW}")

    def close(self) -> None:
        with self.stack:
            self.closed = True
            self.attendance.meet(END)
            self.flush()


class Tally:
    """Sum over ranks what a step must know: tokens, and which parameters have gradients. Also a ``Meter``."""

    trouble = False

    def __init__(self, run: Run) -> None:
        self.run, self.fabric = run, run.group.fabric
        self.numbers = {parameter: number for number, parameter in enumerate(run.of, start=FIRST)}
        self.own = np.zeros(FIRST + len(self.numbers))
        self.sums = np.zeros(self.own.size)  # on the host, also if there is a GPU: the host decides
        self.plan = make_plan("all_reduce", self.sums, run.world.transport, algorithm="auto")
        run.group.plans.callback(self.plan.free)
        self.handle: Any = None

    def start(self, tokens: float | None) -> None:
        check = crc32(text_of(self.run.updates.groups).encode()) & 0xFFFF  # its square is exact
        self.own[:FIRST] = (tokens is not None, tokens or 0, check, check**2)
        self.sums[...] = self.own
        self.handle = self.run.alone or self.fabric.launch_act((EXCHANGE, 0), self.plan, "the step's sums")
        self.known = False

    def wait(self) -> None:
        """Wait for the sums, before the first update of a step."""
        if self.handle is None:
            raise ValueError(EARLY)
        if self.known:
            return
        if not self.run.alone:
            self.fabric.block(self.handle)
        size, updates = self.run.world.size, self.run.updates
        given, tokens, check, squares = self.sums[:FIRST].tolist()
        if given and (given < size or tokens <= 0):
            found = f"on {given:g} of {size} ranks, {tokens:g} together"
            raise AgreedError(f"tokens must be given to step() on all ranks, and be above zero, not {found}")
        if check**2 != size * squares:  # true of equal numbers only
            raise AgreedError("ranks have different hyperparameters, such as learning rates, in optimizer.param_groups")
        updates.factor = size / tokens if given else 1.0
        verdict = self.fabric.verdict
        if given and verdict is not None and verdict.factor is not None:
            (clip,) = verdict.statistics
            updates.factor = clip.of(updates.factor) / verdict.factor  # type: ignore[attr-defined]
        updates.unused = frozenset(each for each, number in self.numbers.items() if not self.sums[number])
        self.known = True

    def read(self) -> float:
        return 0.0

    def complaint(self) -> None:
        return None


class Buffers:
    """Send rank 0's buffers, such as running means, to all ranks, hidden under the backward pass."""

    def __init__(self, run: Run) -> None:
        self.run, slab = run, run.group.slab
        self.places = [(own._buffers, name) for own in run.model.modules() for name, _ in own.named_buffers("", False)]
        self.sizes = [own[name].nbytes for own, name in self.places]
        self.bytes = slab.zeros(sum(self.sizes), np.dtype("u1"))
        self.plan = make_plan("broadcast", self.bytes, run.world.transport, algorithm="auto", slab=slab)
        run.group.plans.callback(self.plan.free)

    def start(self) -> None:
        flat = tensor_of(self.bytes)
        if self.run.world.rank == 0:  # a module may replace its buffers
            torch.cat([dense(own[name]).reshape(-1).view(torch.uint8) for own, name in self.places], out=flat)
        self.handle: Any = self.run.group.fabric.launch_act((EXCHANGE, 1), self.plan, "the buffers of rank 0")

    def take(self) -> None:
        self.run.group.fabric.block(self.handle)
        for (own, name), part in zip(self.places, tensor_of(self.bytes).split(self.sizes), strict=True):
            buffer = own[name]
            buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))  # in a copy, at an aligned address


def needed_by(model: Any, started: Container[Any], names: Container[Any]) -> dict[Any, list[Any]]:
    """Return the modules that need each parameter: its own, and the one that started last around it."""
    found: dict[Any, list[Any]] = {}

    def visit(module: Any, around: Any) -> None:
        around = module if module in started else around
        for parameter in module.parameters(recurse=False):
            if parameter in names:
                found.setdefault(parameter, []).extend((module, around))
        for child in module.children():
            visit(child, around)

    visit(model, model)
    return found
