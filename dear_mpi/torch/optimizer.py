"""Train a PyTorch module on all ranks in the user's own loop: wrap the optimiser; the script stays unchanged.

import dear_mpi.torch as dear
optimizer = dear.DistributedOptimizer(torch.optim.AdamW(model.parameters()), model)
for x, y in loader:
    optimizer.zero_grad()
    loss_of(model(x), y).backward()     # gradients travel as soon as autograd has completed a bucket of them
    optimizer.step()                    # takes the hyperparameters; a bucket is updated when its layers need it

    idle        step() was called: under ``dear`` buckets are gathered and updated in the next forward pass
    forward     modules start, each after the update of its parameters
    ready       backward() is over: averages are on their way, ``p.grad`` is this rank's own gradient
    averaged    synchronize() was called: ``p.grad`` is the average

The first iteration shows the order of the modules; its ``step()`` moves the parameters into the flat buffer. Between
steps, parameters whose updates are in flight complete them when anyone looks: see ``underway.py``.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.autograd import Variable

from dear_mpi.collectives import broadcast, transport_of
from dear_mpi.collectives.program.errors import AgreedError, MismatchError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.watchdog import Watchdog
from dear_mpi.ranks.world import World, last_words, started
from dear_mpi.torch.checks import NO_GRADIENTS, SYNCHRONIZE, Sent, check_eager, check_tokens, details_of, facts_of
from dear_mpi.torch.run import Run
from dear_mpi.torch.sums import ANEW, Clip
from dear_mpi.torch.tensors import octets, plain
from dear_mpi.torch.underway import Starts
from dear_mpi.torch.updates import UserUpdates
from dear_mpi.training.routes.invariant import shares
from dear_mpi.training.session import REPORT_S

IDLE, FORWARD, READY, AVERAGED = "idle", "forward", "ready", "averaged"


class DistributedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimiser that averages gradients over ranks while the module computes.

    To schedulers and scalers it is the user's optimiser: both share groups, state and hooks. All ranks must construct
    it with equal arguments, take equally many steps, and call ``state_dict`` together if ``update="sharded"``.

    Args:
        optimizer: of ``torch.optim``, or any other with ``param_groups``, for parameters of ``model``.
        model: on all ranks the same; it starts from rank 0's parameters and buffers.
        comm: an mpi4py communicator or a ``World`` that nothing else uses; default: a copy of ``MPI.COMM_WORLD``.
        schedule: decides when gradients travel, see ``dear-mpi train --help``.
        accumulate: the number of backward passes before each step; fewer ones are sent by ``step()``, without overlap.
        invariant: the number of the job's micro-batches, a power of two; call ``backward()`` for each of
            ``micro_batches``. Parameters then have the same bits on any number of ranks.
        elastic: survivors of a death continue: each method, pass and read may raise RanksLost. Parameters and the
            optimiser's state are then those before step ``RanksLost.iteration``, counted from 0: repeat from there.
        clip: the largest norm of the average of all gradients, as in ``clip_grad_norm_``.
        broadcast_buffers: whether all ranks take rank 0's buffers, such as running means, after each forward pass.
        options: of ``dear_mpi.training.Session``: fusion, algorithm, wire, update, route, ...

    Raises:
        ArgumentError, MismatchError: an argument is not allowed, or differs between ranks.
    """

    run: Run | None = None  # from the first step() until close()
    updates: UserUpdates

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: Any,
        *,
        comm: Any = None,
        schedule: str = "dear",
        accumulate: int = 1,
        invariant: int | None = None,
        elastic: bool = False,
        clip: float | None = None,
        broadcast_buffers: bool = True,
        **options: Any,
    ) -> None:
        self.optimizer, self.model = optimizer, model
        found = comm.transport if isinstance(comm, World) else comm
        self.world = transport_of(started().Dup() if found is None else found)
        self.elastic, self.invariant, self.broadcast_buffers = elastic, invariant, broadcast_buffers
        self.options: dict[str, Any] = {"schedule": schedule, "invariant": invariant, "elastic": elastic, **options}
        try:
            agree(self.world, "DistributedOptimizer", lambda: facts_of(self, clip=clip, accumulate=accumulate))
        except MismatchError:
            try:
                agree(self.world, "DistributedOptimizer", lambda: details_of(self))
            except MismatchError as first:
                raise first from None
            raise
        self.accumulate = len(self.micro_batches) if invariant else accumulate
        self.device = next(model.parameters()).device
        self.options |= {"device": self.device.type, "statistic": None if clip is None else Clip(clip)}
        self._patch_step_function()  # runs the user's hooks around step()
        with plain([*model.parameters(), *model.buffers()]) as tensors:  # all ranks start alike
            for each in tensors:
                broadcast(octets(each), self.world)
        self.state_now, self.local, self.parts, self.reached = IDLE, False, 0, False
        self.task, self.in_backward, self.sending, self.closed = -1, False, False, False
        self.order: dict[Any, None] = {}  # modules, as they start in the first pass
        self.sent = Sent(self.names)
        self.hooks = ExitStack()
        self.starts = {
            module: self.hooks.enter_context(module.register_forward_pre_hook(Starts(self, module), prepend=True))
            for module in model.modules()
        }
        for parameter in self.names:
            self.hooks.enter_context(parameter.register_post_accumulate_grad_hook(self.accumulated))
        self.hooks.enter_context(optimizer.register_step_pre_hook(self.refuse_own_step))

    @property
    def micro_batches(self) -> range:
        """Return this rank's micro-batches, if ``invariant`` cuts the job's batch into as many; else its rank."""
        rank = self.world.rank
        return shares(self.invariant, self.world.size)[rank] if self.invariant else range(rank, rank + 1)

    def refuse_own_step(self, stepped: Any, *given: Any) -> None:
        if stepped is self.optimizer:  # both have the same hooks
            raise ValueError("your optimizer is in a DistributedOptimizer: call step() of that, or close() it before")

    # What schedulers and scalers see.

    def __getattr__(self, name: str) -> Any:
        """Return the groups, the state and the hooks of the user's optimiser."""
        return getattr(vars(self)["optimizer"], name)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Tell a scaler, which begins to take a step, to unscale gradients itself."""
        if self.state_now == READY:
            raise ValueError(f"a scaler must see the same gradients on all ranks: {SYNCHRONIZE}")
        return False

    def zero_grad(self, *given: Any, **named: Any) -> None:
        with torch._C.DisableTorchFunctionSubclass():  # updates in flight do not matter to it
            self.optimizer.zero_grad(*given, **named)
        if self.state_now == AVERAGED:  # a scaler left out the step
            self.end_step()

    def add_param_group(self, group: dict[str, Any]) -> None:
        raise ValueError(f"a parameter group cannot be added later: {ANEW}")

    def state_dict(self) -> dict[str, Any]:
        """Complete all updates and return the state of the user's optimiser, as of a run on one process."""
        self.flush()
        before = dict(self.state)
        self.updates.collect()
        found = self.optimizer.state_dict()
        self.state.clear()
        self.state.update(before)
        return {**found, "state": {number: state for number, state in found["state"].items() if state}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.flush()
        self.optimizer.load_state_dict(state)
        self.updates.distribute()

    def __reduce__(self) -> Any:
        raise TypeError("a DistributedOptimizer can neither be copied nor saved: take its state_dict()")

    # Steps.

    def step(self, closure: Callable[[], Any] | None = None, *, tokens: float | None = None) -> Any:
        """Take a step with the average of all ranks' gradients.

        Args:
            tokens: how many this rank's loss is the *sum* over, or the weight that it was multiplied by; averages are
                then over the tokens of all ranks. With 0 it needs no ``backward()``: this rank adds zeros.

        Raises:
            ValueError: there is no new gradient, or ``p.grad`` was changed without ``synchronize``.
        """
        tokens = check_tokens(tokens)
        with torch.enable_grad():
            loss = closure and closure()
        averaged = self.state_now == AVERAGED
        if not averaged:
            self.check_ready("step()", tokens)
        elif tokens is not None:
            raise ValueError("tokens belong to synchronize(tokens=n), which has averaged the gradients")
        self.optimizer._opt_called = True
        self.updates.take()
        if averaged:
            self.running().end_by_user()
        else:
            self.running().end(tokens)
        self.rest()
        return loss

    def synchronize(self, *, tokens: float | None = None) -> None:
        """Make ``p.grad`` the average over ranks, which may then be changed; ``tokens`` as in ``step``. Collective."""
        tokens = check_tokens(tokens)
        self.check_ready("synchronize()", tokens)
        run = self.running()
        route = run.group.route
        if run.group.arena.sharded or route.period > 1 or route.lags:
            raise ValueError(
                f"synchronize() needs the averages of each step on each rank, not the route {route.name!r}"
            )
        self.updates.take()
        run.average(tokens)
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
        """Complete the updates in flight: parameters are then those after the last ``step()``.

        Other ranks need not call it, but under ``fsdp`` and ``zero``.
        """
        if self.run is not None and self.state_now != READY:  # else updates were complete before the last pass
            self.run.flush()

    def check_ready(self, what: str, tokens: float | None) -> None:
        if self.closed:
            raise ValueError(f"{what} came after close(): step your own optimizer, or wrap it again")
        if self.in_backward:  # only in reentrant checkpoints
            self.end_backward()
        if tokens == 0 and not self.reached:
            self.add_zeros()
        if self.state_now == FORWARD and self.invariant:
            raise ValueError(f"{what} needs a backward() for each of this rank's {self.accumulate} micro-batches")
        if self.state_now == FORWARD and self.parts:  # an epoch's last passes are fewer than ``accumulate``
            self.parts = self.accumulate - 1
            self.begin_backward()
            self.end_backward()
        if self.state_now != READY:
            raise ValueError(f"{what} {NO_GRADIENTS}")
        self.sent.check()

    def add_zeros(self) -> None:
        """Do as a backward pass whose gradients are zero: this rank has no example."""
        for parameter in self.names:
            parameter.grad = None
        self.parts = 0 if self.invariant else self.accumulate - 1
        while self.state_now != READY:
            self.begin_backward()
            self.end_backward()

    def running(self) -> Run:
        """Return the run. The first time, make it, and send the gradients of the first iteration."""
        if self.run is None:
            with Watchdog(self.world, REPORT_S):
                self.run = Run(self)
            if self.world.native is not None:
                atexit.register(self.at_exit)
            for module in self.starts.keys() - self.run.call_of.keys():
                self.starts.pop(module).remove()
            self.run.begin()
            self.run.begin_backward()
            self.run.end_backward()
        return self.run

    # Hooks.

    def started(self, module: Any) -> None:
        """Handle a module that starts: its parameters must be up to date."""
        if self.state_now == IDLE:
            check_eager()
        if self.run is None:
            if torch.is_grad_enabled():
                self.order.setdefault(module)
        elif not torch.is_grad_enabled():
            self.run.finish()
        elif torch._C._current_graph_task_id() == -1:  # else a checkpoint computes again
            if self.in_backward:
                self.end_backward()
            if self.state_now == AVERAGED and all(parameter.grad is None for parameter in self.names):
                self.end_step()  # a scaler left out the step
            if self.state_now == IDLE:
                for parameter in self.names if self.invariant else ():  # the first micro-batch begins anew
                    parameter.grad = None
                self.run.begin()
                self.state_now = FORWARD
            if self.state_now == FORWARD:
                self.run.before_forward(self.run.call_of[module])

    def accumulated(self, parameter: Any) -> None:
        """Handle a gradient that autograd has completed."""
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.task = task
            Variable._execution_engine.queue_callback(self.end_backward)
        if not self.in_backward:
            self.begin_backward()
        if self.sending and self.run is not None and not self.run.alone:
            self.sent.note(parameter)  # now: a later hook may change it
            self.run.note_gradient(parameter)

    def begin_backward(self) -> None:
        if self.state_now in (READY, AVERAGED) and self.invariant:
            raise ValueError(f"backward() was called after this rank's {self.accumulate} micro-batches: call step()")
        if self.state_now in (READY, AVERAGED):
            count = self.parts + 1
            raise ValueError(
                f"backward() was called {count} times before step(): pass accumulate={count} (or more) to "
                f"DistributedOptimizer, not {self.accumulate}, or run all but the last in optimizer.no_sync(), also if "
                "they are for another optimizer; with a scaler, or to drop gradients, call optimizer.synchronize() "
                "before its step() or zero_grad()"
            )
        self.in_backward = self.reached = True
        self.sent.rows.clear()
        self.sending = not self.local and bool(self.invariant or self.parts + 1 >= self.accumulate)
        if self.run is not None:
            if self.state_now == IDLE:
                self.run.begin()
            if self.sending:
                self.run.begin_backward()
        self.state_now = FORWARD

    def end_backward(self) -> None:
        """End a backward pass: parameters without a gradient now have none. Autograd calls it, also in checkpoints."""
        if torch._C._current_autograd_node() is not None or not self.in_backward:
            return
        self.in_backward = False
        self.parts += not self.local
        if self.sending:
            if self.run is not None:
                self.run.end_backward()
            elif self.invariant:
                self.running()
        if self.sending and self.parts >= self.accumulate:
            self.sent.complete()
            self.state_now = READY

    def begin_anew(self) -> None:
        """Forget a broken iteration, because ranks have died (``elastic``)."""
        for parameter in self.names:
            parameter.grad = None
        self.rest()
        self.task, self.in_backward = -1, False
        self.sent.rows.clear()
        if self.invariant:
            self.accumulate = len(self.micro_batches)

    def drop(self) -> None:
        """Complete what backward() sent, without a step. Collective."""
        self.updates.take()
        self.running().average(None)
        self.end_step()

    def end_step(self) -> None:
        self.running().rest()
        self.rest()

    def rest(self) -> None:
        self.state_now, self.parts, self.reached = IDLE, 0, False

    def at_exit(self) -> None:
        if hasattr(sys, "last_value"):
            return
        try:
            self.end_run()
        except BaseException as error:  # Python would ignore it, and end with status 0
            if self.world.rank == 0 or not isinstance(error, AgreedError):  # else rank 0 reports
                self.world.abort(last_words(self.world.rank, error))

    def end_run(self) -> None:
        if self.run is not None:
            if self.state_now == READY and not self.run.tally.error:
                self.drop()
            self.run.close()

    def close(self) -> None:
        """Complete all updates and give back the plans. Collective.

        The module is then an ordinary one, and the user's optimiser has the whole state. With ``elastic`` it may raise
        RanksLost: call it again after the repeated steps.
        """
        if self.run is not None and self.elastic:
            self.run.agree_to_end()
        atexit.unregister(self.at_exit)
        self.hooks.close()
        self.end_run()
        self.updates.collect()
        self.run, self.closed = None, True

    def __enter__(self) -> DistributedOptimizer:
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is None:
            self.close()
