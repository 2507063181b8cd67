"""Train a PyTorch module on all ranks in the user's own loop: wrap the optimiser, and leave the script as it is.

import dear_mpi.torch as dear
optimizer = dear.DistributedOptimizer(torch.optim.AdamW(model.parameters()), model)
for x, y in loader:
    optimizer.zero_grad()
    loss_of(model(x), y).backward()     # gradients travel as soon as autograd has completed a bucket of them
    optimizer.step()                    # takes the hyperparameters; a bucket is updated when its layers need it

    started     the first forward pass shows the order of the modules; then parameters move into the flat buffer
    idle        step() was called: under ``dear`` buckets are gathered and updated in the next forward pass
    forward     modules start, each after the update of its parameters
    ready       backward() is over: averages are on their way, ``p.grad`` is this rank's own gradient
    averaged    synchronize() was called: ``p.grad`` is the average

Between steps, parameters whose updates are in flight complete them when anyone looks: see ``underway.py``.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any
from zlib import crc32

import torch
from torch.autograd import Variable

from dear_mpi.collectives import broadcast, transport_of
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.torch.run import Run
from dear_mpi.torch.tensors import array_of, check_module
from dear_mpi.torch.updates import UserUpdates, is_elementwise

IDLE, FORWARD, READY, AVERAGED = "idle", "forward", "ready", "averaged"
MOST = 300  # characters of a model's description
SYNCHRONIZE = "call optimizer.synchronize() before, which makes p.grad the average over ranks"


class DistributedOptimizer(torch.optim.Optimizer):
    """An optimiser that averages gradients over ranks while the module computes.

    To schedulers and scalers it is the user's optimiser: both share groups and state. All ranks must construct it with
    equal arguments, take equally many steps, and call ``state_dict`` together if ``update="sharded"``.

    Args:
        optimizer: of ``torch.optim``, or any other with ``param_groups``, for parameters of ``model``.
        model: on all ranks the same; it starts from rank 0's parameters and buffers.
        comm: an mpi4py communicator, by default ``MPI.COMM_WORLD``.
        schedule: decides when gradients travel, see ``dear-mpi train --help``.
        accumulate: the number of backward passes before each step.
        broadcast_buffers: whether all ranks take rank 0's buffers, such as running means, after each forward pass.
        options: of ``dear_mpi.training.Session``: fusion, algorithm, wire, update, clip, route, ...

    Raises:
        ValueError: the module or the optimiser cannot be trained this way.
        ArgumentError, MismatchError: an option is not allowed, or differs between ranks.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: Any,
        *,
        comm: Any = None,
        schedule: str = "dear",
        accumulate: int = 1,
        broadcast_buffers: bool = True,
        **options: Any,
    ) -> None:
        self.optimizer, self.model = optimizer, model
        super().__setstate__({})
        self.world = transport_of(world() if comm is None else comm)
        self.accumulate, self.broadcast_buffers = accumulate, broadcast_buffers
        self.options = {"schedule": schedule, **options}
        self.device = next(iter(model.parameters())).device if isinstance(model, torch.nn.Module) else None
        agree(self.world, "DistributedOptimizer", self.checked)
        self.updates = UserUpdates(optimizer, whole=not is_elementwise(optimizer))
        self.start_alike()
        self.state_now, self.local, self.parts = IDLE, False, 0
        self.in_backward = self.sending = False
        self.session: Run | None = None
        self.order: dict[Any, None] = {}  # modules, as they start in the first pass
        self.lock, self.hooks = RLock(), ExitStack()
        self.modules = set(model.modules())
        for module in model.modules():
            self.hooks.enter_context(module.register_forward_pre_hook(Starts(self), prepend=True))
        for parameter in self.names:
            self.hooks.enter_context(parameter.register_post_accumulate_grad_hook(self.accumulated))
        atexit.register(self.at_exit)

    def checked(self) -> dict[str, Any]:
        """Check the arguments; return what must be equal on all ranks."""
        model, optimizer = self.model, self.optimizer
        if isinstance(optimizer, DistributedOptimizer):
            raise ValueError("optimizer is a DistributedOptimizer already: pass the one that it was made from")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer must be one of torch.optim, not {optimizer!r:.99}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "optimizer LBFGS looks at all parameters at once and runs the model several times: take another"
            )
        if isinstance(self.accumulate, bool) or not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise ValueError(f"accumulate must be a whole number from 1 on, not {self.accumulate!r:.99}")
        check_module(model)
        names = {parameter: name for name, parameter in model.named_parameters()}
        listed = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        strange = [each for each in listed if each not in names]
        if strange:
            raise ValueError(
                f"optimizer has {len(strange)} parameters that are not the model's: make it from model.parameters()"
            )
        self.names = {parameter: names[parameter] for parameter in listed if parameter.requires_grad}
        if not self.names:
            raise ValueError("optimizer has no parameter that is trained (requires_grad)")
        tensors = [*model.named_parameters(), *model.named_buffers()]
        devices = {each.device for _, each in tensors}
        if len(devices) > 1:
            raise ValueError(f"model must be on one device, not on {' and '.join(sorted(map(str, devices)))}")
        shapes = [
            f"{name} {each.dtype}{list(each.shape)}{' frozen' * (each not in self.names)}" for name, each in tensors
        ]
        groups = [[names[each] for each in group["params"]] for group in optimizer.param_groups]
        text = f"{', '.join(shapes)}; {groups}"
        return {
            "model": text if len(text) < MOST else f"{text[:MOST]}... (checksum {crc32(text.encode()):08x})",
            "optimizer": type(optimizer).__name__,
            "accumulate": self.accumulate,
        }

    def start_alike(self) -> None:
        """Take rank 0's parameters and buffers."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        with torch.no_grad():
            for tensor in tensors:
                array = array_of(tensor.detach().contiguous().reshape(-1)).view("u1")
                if array.size:
                    broadcast(array, self.world)
                    tensor.copy_(torch.from_numpy(array).view(tensor.dtype).reshape(tensor.shape))

    # What schedulers and scalers see.

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def defaults(self) -> dict[str, Any]:
        return self.optimizer.defaults

    @property
    def state(self) -> Any:
        return self.optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, group: dict[str, Any]) -> None:
        raise ValueError("a parameter group cannot be added later: begin a new DistributedOptimizer for that")

    def state_dict(self) -> dict[str, Any]:
        """Complete all updates and return the state of the user's optimiser, as of a run on one process."""
        self.flush()
        if self.session is not None:
            self.updates.collect(
                self.session.world.transport.gather_values if self.session.group.arena.sharded else None
            )
        found = self.optimizer.state_dict()
        return {**found, "state": {number: state for number, state in found["state"].items() if state}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.flush()
        self.optimizer.load_state_dict(state)
        self.updates.distribute()

    # Steps.

    def step(self, closure: Callable[[], Any] | None = None, *, tokens: int | None = None) -> Any:
        """Take a step with the average of all ranks' gradients.

        Args:
            tokens: how many this rank's loss is the *sum* over; averages are then over the tokens of all ranks.

        Raises:
            ValueError: there is no new gradient, or ``p.grad`` was changed without ``synchronize``.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.state_now not in (READY, AVERAGED):
            missing = (
                f"backward() was called {self.parts} of {self.accumulate} times"
                if self.parts
                else "there was no backward()"
            )
            raise ValueError(f"step() has no new gradients: {missing} since the last step()")
        self.optimizer._opt_called = True
        self.updates.take()
        session = self.session
        if self.state_now == AVERAGED:
            self.updates.step_from_user()
            session.trainer.end_iteration()
        else:
            self.check_unchanged()
            session.end(tokens)
        self.state_now, self.parts = IDLE, 0
        session.rest()
        return loss

    def synchronize(self) -> None:
        """Wait until ``p.grad`` is the average over ranks; it may then be changed before ``step()``. Collective."""
        if self.state_now != READY:
            raise ValueError("synchronize() belongs between backward() and step()")
        session = self.session
        if session.group.arena.sharded:
            raise ValueError(
                "synchronize() needs update='full': with 'sharded' a rank has its own part of averages alone"
            )
        self.check_unchanged()
        self.updates.handing_over = True
        try:
            session.average()
        finally:
            self.updates.handing_over = False
        self.state_now = AVERAGED

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep the gradients of backward passes in this block on this rank, as DDP's ``no_sync``."""
        before, self.local = self.local, True
        try:
            yield
        finally:
            self.local = before

    def flush(self) -> None:
        """Complete the updates in flight: parameters are then those after the last ``step()``."""
        if self.session is not None:
            self.session.finish()

    def check_unchanged(self) -> None:
        for parameter, (grad, version) in self.sent.items():
            if parameter.grad is not grad or (grad is not None and grad._version != version):
                name = self.names[parameter]
                raise ValueError(f"the gradient of {name} was changed after backward() had sent it: {SYNCHRONIZE}")

    # Hooks.

    def started(self, module: Any) -> None:
        """Handle a module that starts: its parameters must be up to date."""
        if self.session is None:
            if torch.is_grad_enabled():
                self.order.setdefault(module)
            return
        if not torch.is_grad_enabled():
            self.session.take_buffers()
            return
        if self.state_now in (IDLE, AVERAGED) and not self.parts:
            self.session.begin()
            self.state_now = FORWARD
        if self.state_now == FORWARD:
            self.session.before_forward(module)

    def accumulated(self, parameter: Any) -> None:
        """Handle a gradient that autograd has completed."""
        if not self.in_backward:
            self.begin_backward()
        if self.sending:
            self.session.send(parameter)

    def begin_backward(self) -> None:
        if self.state_now in (READY, AVERAGED):
            raise ValueError(
                "backward() was called twice before step(): pass accumulate=2 (or more) to DistributedOptimizer, or "
                "run the first one in optimizer.no_sync()"
            )
        self.in_backward = True
        Variable._execution_engine.queue_callback(self.end_backward)
        self.sending = not self.local and self.parts + 1 >= self.accumulate
        if not self.sending:
            return
        if self.session is None:
            self.session = Run(self)
            self.session.begin()
        elif self.state_now == IDLE and not self.parts:
            self.session.begin()
        self.session.begin_backward()

    def end_backward(self) -> None:
        """End a backward pass: autograd calls it. What has no gradient now will have none."""
        self.in_backward = False
        self.parts += not self.local
        if self.sending:
            self.session.end_backward()
            self.sent = {each: (each.grad, None if each.grad is None else each.grad._version) for each in self.names}
            self.state_now = READY

    def at_exit(self) -> None:
        if getattr(sys, "last_value", None) is None and self.session is not None:
            self.close()

    def close(self) -> None:
        """Complete all updates and give back the plans; the module is then an ordinary one."""
        atexit.unregister(self.at_exit)
        self.hooks.close()
        if self.session is not None:
            session, self.session = self.session, None
            session.close()

    def __enter__(self) -> DistributedOptimizer:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.close()


class Starts:
    """The hook of a module that starts. In copies of the module, also saved ones, it does nothing."""

    def __init__(self, owner: DistributedOptimizer | None = None) -> None:
        self.owner = owner

    def __call__(self, module: Any, given: Any) -> None:
        if self.owner is not None and module in self.owner.modules:
            self.owner.started(module)

    def __deepcopy__(self, memo: Any) -> Starts:
        return Starts()

    def __reduce__(self) -> Any:
        return Starts, ()


def world() -> Any:
    from mpi4py import MPI  # starts MPI

    return MPI.COMM_WORLD
