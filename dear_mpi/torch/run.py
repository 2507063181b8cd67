"""Run the passes of a user's loop as iterations of a session: modules start, gradients come, a step is taken.

call 0: embedding | call 1: block 0 ...      a **layer call** begins when a module starts that holds parameters
tally             | tokens, uses of each parameter |      one small all-reduce per step, after all gradients
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.ranks.streams import Streams, cuda_streams, host_streams
from dear_mpi.torch.tensors import TorchParameter, tensor_of
from dear_mpi.torch.underway import tree_of, under_way
from dear_mpi.training.fabric.engine import Engine
from dear_mpi.training.fabric.order import LOSS, Step
from dear_mpi.training.log import EXCHANGE
from dear_mpi.training.session import Session
from dear_mpi.training.trainer import Trainer

if TYPE_CHECKING:
    from dear_mpi.torch.optimizer import DistributedOptimizer

ANEW = "begin a new DistributedOptimizer for that"
STEP, BUFFERS = "the step's sums", "the buffers of rank 0"


@dataclass(eq=False)
class Call:
    """A layer for the session: the parameters that are needed from a module's start on."""

    parameters: list[TorchParameter]


class Run(Session):
    """A session whose passes the user runs.

    Args:
        owner: its module has run forward once.
    """

    sums, faults = True, ()  # as a ``Model``
    loss: Any = None

    def __init__(self, owner: DistributedOptimizer) -> None:
        self.owner, self.model, self.names = owner, owner.model, owner.names
        self.updates = owner.updates
        order = calls_of(owner.model, list(owner.order), owner.names)
        order = owner.world.gather_values(order)[0]  # rank 0's: branches may differ
        wrapped = {name: TorchParameter(owner.model, name) for names in order for name in names}
        calls: Any = [Call([wrapped[name] for name in names]) for names in order]
        self.begins = {}
        homes = {parameter: call for call in range(len(order)) for parameter in calls[call].parameters}
        at = {parameter.tensor: call for parameter, call in homes.items()}
        for module in owner.model.modules():
            held = [at[each] for each in module.parameters(recurse=False) if each in at]
            if held:
                self.begins[module] = max(held)
        self.of = {parameter.tensor: (call, parameter) for parameter, call in homes.items()}
        self.tree = tree_of(owner.model)
        super().__init__(
            calls, None, owner.world, optimizer=owner.updates, name="DistributedOptimizer", **owner.options
        )

    def open_streams(self, device: str) -> Streams:  # type: ignore[override]
        """Return the streams: on a GPU the module computes on PyTorch's current one."""
        if self.owner.device.type == "cpu":
            return host_streams()
        return cuda_streams(torch.cuda.current_stream(self.owner.device).cuda_stream)

    def open(self, engine: Engine) -> None:
        self.passes = self
        super().open(engine)
        self.trainer: Trainer = self.group.trainers[self.last]
        self.scale = 1 / self.world.size
        self.tally = Tally(self)
        self.group.plans.callback(self.tally.plan.free)
        self.trainer.meter = self.tally
        self.updates.wait = self.tally.wait
        kinds = {torch.Tensor, *(type(tensor) for tensor in self.of)}
        self.kinds = {kind: under_way(kind, self.finish) for kind in kinds}
        self.paused: dict[Any, type] = {}
        self.buffers = (
            Buffers(self) if self.owner.broadcast_buffers and any(True for _ in self.model.buffers()) else None
        )

    # The events of an iteration.

    def begin(self) -> None:
        """Begin an iteration, at the first module that starts."""
        self.check_open()
        self.look()
        self.attendance.steps += 1
        self.take_buffers()
        self.trainer.begin_iteration()
        self.trainer.begin_pass()

    def before_forward(self, module: Any) -> None:
        call = self.begins.get(module)
        if call is not None and call > self.trainer.running:
            first = self.trainer.running + 1
            self.trainer.before_forward(call)
            self.show(range(first, call + 1))

    def begin_backward(self) -> None:
        first, calls = self.trainer.running + 1, len(self.group.uses)
        self.trainer.end_forward()
        self.show(range(first, calls))
        self.trainer.fabric.launch_sum(LOSS, lambda: None)  # an order expects it
        if self.buffers is not None:
            self.buffers.start()
        self.missing = [{each for each in call.parameters if each.trained} for call in self.group.layers]
        self.trainer.begin_backward()
        self.trainer.before_backward(calls - 1)

    def send(self, parameter: Any) -> None:
        """Copy a parameter's complete gradient to the flat buffer; send buckets that are complete."""
        call, wrapped = self.of[parameter]
        if wrapped not in self.missing[call]:
            advice = "checkpoints must be of the kind use_reentrant=False"
            raise ValueError(f"parameter {wrapped.name} has a gradient twice in one backward pass: {advice}")
        self.copy(wrapped)
        self.missing[call].remove(wrapped)
        if not self.missing[call]:
            with self.group.streams.compute.use():  # autograd has its own thread for a GPU
                self.trainer.wrote(call)

    def copy(self, parameter: TorchParameter) -> None:
        grad = parameter.tensor.grad
        self.tally.used(parameter.tensor, grad is not None)
        if grad is None:
            parameter.gradient.zero_()
        else:
            torch.mul(grad.to_dense() if grad.layout != torch.strided else grad, self.scale, out=parameter.gradient)

    def end_backward(self) -> None:
        for call, missing in reversed([*enumerate(self.missing)]):
            if missing:
                for parameter in missing:
                    self.copy(parameter)
                missing.clear()
                with self.group.streams.compute.use():
                    self.trainer.wrote(call)

    def average(self) -> None:
        """Complete the averages, and hand them to the user."""
        self.tally.start(None)
        self.trainer.end_backward()
        self.trainer.flush()

    def end(self, tokens: int | None) -> None:
        self.tally.start(tokens)
        self.trainer.end_backward()
        self.trainer.end_iteration()

    def rest(self) -> None:
        """Decide buckets and orders, then wait for a use of a parameter whose update is in flight."""
        self.decisions.look(self.last)
        if not self.trainer.rules.idle:
            for parameter in self.of:
                self.paused[parameter] = type(parameter)
                parameter.__class__ = self.kinds[type(parameter)]

    # Between steps.

    def show(self, calls: Sequence[int] | range) -> None:
        """Give the parameters of these layer calls their own class: they are up to date."""
        if self.paused:
            for call in calls:
                for parameter in self.group.layers[call].parameters:
                    if parameter.tensor in self.paused:
                        parameter.tensor.__class__ = self.paused.pop(parameter.tensor)

    def finish(self) -> None:
        """Complete the updates in flight, because a parameter is used, perhaps on this rank alone."""
        with self.owner.lock:
            if self.paused:
                self.trainer.finish()
                self.show(range(len(self.group.layers)))
            self.take_buffers()

    def take_buffers(self) -> None:
        if self.buffers is not None:
            self.buffers.take()

    def look(self) -> None:
        """Refuse a model with other parameters than at the start."""
        for parameter, (_, wrapped) in self.of.items():
            if not parameter.requires_grad:
                raise ValueError(f"parameter {wrapped.name} was frozen since the first step: {ANEW}")
            if parameter.data_ptr() != wrapped.address:
                raise ValueError(f"parameter {wrapped.name} was bound to other memory: change it in place (copy_)")
        for own, known in self.tree:
            if len(own) != len(known) or any(one is not other for one, other in zip(own.values(), known, strict=True)):
                raise ValueError(f"the model's modules or parameters were added, removed or replaced: {ANEW}")

    def close(self) -> None:
        with self.stack:
            self.closed = True
            self.finish()


class Tally:
    """Sum over ranks what a step must know: tokens, and which parameters have gradients. Also a ``Meter``."""

    trouble = False

    def __init__(self, run: Run) -> None:
        self.run, self.fabric = run, run.group.fabric
        self.numbers = {parameter: number for number, parameter in enumerate(run.of, start=2)}
        self.own = np.zeros(2 + len(self.numbers))
        self.sums = np.zeros(self.own.size)  # on the host, also beside a GPU: the host decides
        self.plan = make_plan("all_reduce", self.sums, run.world.transport, algorithm="auto")
        self.handle: Any = None

    def used(self, parameter: Any, used: bool) -> None:
        self.own[self.numbers[parameter]] = used

    def start(self, tokens: int | None) -> None:
        self.own[:2] = (0, 0) if tokens is None else (1, tokens)
        self.sums[...] = self.own
        self.handle = self.fabric.submit((EXCHANGE, 0), STEP, lambda turn: [Step(EXCHANGE, 0, STEP, self.plan)])
        self.known = False

    def wait(self) -> None:
        """Wait for the sums, before the first update of a step."""
        if self.handle is None:
            what = "updates shards while backward() runs, before step()"
            raise ValueError(f"schedule {self.run.last!r} {what}: take dear, or update='full'")
        if self.known:
            return
        self.fabric.block(self.handle)
        self.known = True
        given, tokens = self.sums[:2].tolist()
        if 0 < given < self.run.world.size:
            raise AgreedError(f"tokens must be given to step() on all ranks, not on {given:g} of {self.run.world.size}")
        if given and tokens <= 0:
            raise AgreedError(f"tokens must be above zero over all ranks, not {tokens:g}")
        self.run.updates.factor = self.run.world.size / tokens if given else 1.0
        self.run.updates.unused = frozenset(each for each, number in self.numbers.items() if not self.sums[number])

    def read(self) -> float:
        return 0.0

    def complaint(self) -> None:
        return None


class Buffers:
    """Send rank 0's buffers, such as running means, to all ranks, hidden under the backward pass."""

    def __init__(self, run: Run) -> None:
        self.run, self.tensors = run, [each for each in run.model.buffers() if each.numel()]
        self.bytes = run.group.slab.zeros(sum(each.nbytes for each in self.tensors), np.dtype("u1"))
        self.plan = make_plan("broadcast", self.bytes, run.world.transport, algorithm="auto", slab=run.group.slab)
        run.group.plans.callback(self.plan.free)
        ends = list(accumulate(each.nbytes for each in self.tensors))
        flat = tensor_of(self.bytes)
        self.views = [
            flat[end - each.nbytes : end].view(each.dtype).view(each.shape)
            for each, end in zip(self.tensors, ends, strict=True)
        ]
        self.handle: Any = None

    def start(self) -> None:
        if self.run.world.rank == 0:
            torch._foreach_copy_(self.views, self.tensors)
        step = Step(EXCHANGE, 1, BUFFERS, self.plan)
        self.handle = self.run.group.fabric.submit((EXCHANGE, 1), BUFFERS, lambda turn: [step])

    def take(self) -> None:
        """Take rank 0's buffers, if new ones were sent."""
        if self.handle is not None:
            handle, self.handle = self.handle, None
            self.run.group.fabric.block(handle)
            if self.run.world.rank:
                with torch.no_grad():
                    torch._foreach_copy_(self.tensors, self.views)


def calls_of(model: Any, started: Sequence[Any], names: dict[Any, str]) -> list[list[str]]:
    """Return the names of the parameters that each layer call needs first, in the order of the first pass.

    A module that did not start by itself, because its parent or a function took its parameters, counts as started with
    its parent.
    """
    place = {module: number for number, module in enumerate(started)}
    found: dict[int, list[str]] = {}

    def visit(module: Any, inherited: int) -> None:
        number = place.get(module, inherited)
        for parameter in module.parameters(recurse=False):
            if parameter in names:
                homes.setdefault(parameter, []).append(number)
        for child in module.children():
            visit(child, number)

    homes: dict[Any, list[int]] = {}
    visit(model, 0)
    for parameter, numbers in homes.items():
        found.setdefault(min(numbers), []).append(names[parameter])
    return [found[number] for number in sorted(found)]
