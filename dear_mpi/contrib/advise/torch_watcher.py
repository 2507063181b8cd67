"""Watch an unchanged script through PyTorch's global hooks: when layers begin, and when gradients are ready.

Hooks go on nodes of the graph instead of outputs, so in-place operations work. After a warm-up, plain iterations
without hooks alternate with watched ones: the difference is the cost of watching.
"""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from dear_mpi.contrib.advise.observed import BACK, BEGIN, END, INSIDE, OUTSIDE, READY, STEP, STEPPED, USE

COMPILED = "OptimizedModule"  # by torch.compile; one layer: hooks do not run inside
WARM = 3  # uncounted iterations: caches and DDP's buckets are new


class HostClock:
    device = "cpu"

    def now(self) -> Any:
        return time.perf_counter()

    def reader(self) -> Callable[[Any], float]:
        return float


class CudaClock:
    """Times are events in the GPU's stream, read at the end, so the host never blocks."""

    device = "cuda"

    def __init__(self) -> None:
        self.first = self.now()

    def now(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reader(self) -> Callable[[Any], float]:
        """It waits for the GPU once."""
        torch.cuda.synchronize()
        return lambda event: float(self.first.elapsed_time(event)) * 1e-3


def own_parameters(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return a module's parameters without its submodules' ones, unless no hook sees these."""
    return list(module.parameters(recurse=type(module).__name__ == COMPILED))


def ids(optimizer: torch.optim.Optimizer) -> list[int]:
    return [id(each) for group in optimizer.param_groups for each in group["params"]]


class Watcher:
    """Watch iterations of any training while its block runs.

    It calls ``enough`` in the middle of the script, after ``iterations`` of each kind.
    """

    def __init__(self, iterations: int, enough: Callable[["Watcher"], None]) -> None:
        self.most, self.enough = iterations, enough
        self.clock: HostClock | CudaClock = HostClock()
        self.optimizer: Any = None  # its steps end iterations: the first to make one
        self.others = 0  # steps of other optimisers
        self.count = 0  # iterations that ended
        self.began: Any = None  # unknown for the first
        self.watched: list[list[tuple[str, int, Any]]] = []
        self.plain: list[tuple[Any, Any]] = []
        self.marks: list[tuple[str, int, Any]] | None = None  # of a watched iteration
        self.roots: dict[Any, None] = {}  # called by the script
        self.uses: dict[tuple[Any, int], int] = {}  # numbers, by module and earlier runs in a pass
        self.tensors: dict[Any, int] = {}  # numbers
        self.synced: list[bool] = []  # whether DDP sends, by part of a batch
        self.nodes: set[Any] = set()  # of this pass's graph, hooked
        self.calls = Counter[Any]()
        self.depth, self.backward = 0, False
        self.hooks, self.global_hooks = ExitStack(), ExitStack()

    def __enter__(self) -> "Watcher":
        self.hooks.callback(register_optimizer_step_pre_hook(self.step).remove)
        self.hooks.callback(register_optimizer_step_post_hook(self.stepped).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self.global_hooks.close()
        self.hooks.close()
        self.marks = None

    def mark(self, kind: str, key: int = 0) -> None:
        if self.marks is not None:
            self.marks.append((kind, key, self.clock.now()))

    def step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.optimizer is None:
            self.optimizer = optimizer
        elif optimizer is not self.optimizer and ids(optimizer) == ids(self.optimizer):
            self.optimizer = optimizer  # may be recreated in each iteration
        self.mark(STEP)

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.mark(STEPPED)
        if optimizer is not self.optimizer:
            self.others += 1
            return
        now = self.clock.now()
        if self.marks is not None:
            self.watched.append(self.marks)
        elif self.count > WARM:
            self.plain.append((self.began, now))
        self.count += 1
        if self.count == 1 and any(each.is_cuda for group in optimizer.param_groups for each in group["params"]):
            self.clock = CudaClock()
        if len(self.watched) >= self.most and len(self.plain) >= self.most:
            self.enough(self)
        self.turn()

    def turn(self) -> None:
        self.global_hooks.close()
        self.marks = None
        self.begin_pass()
        if self.count >= WARM and (self.count - WARM) % 2 == 0:
            self.global_hooks.callback(register_module_forward_pre_hook(self.entered).remove)
            self.global_hooks.callback(register_module_forward_hook(self.left).remove)
            for group in self.optimizer.param_groups:  # also of modules that do not run
                self.know(group["params"])
            self.marks = []
        self.began = self.clock.now()
        self.mark(BEGIN)

    def begin_pass(self) -> None:
        self.calls.clear()
        self.nodes.clear()
        self.depth, self.backward = 0, False

    @property
    def sees(self) -> bool:
        """Whether a running module is part of a forward pass, not of a checkpoint's recomputation."""
        return self.marks is not None and torch.is_grad_enabled() and not self.backward

    def entered(self, module: Any, args: Any) -> None:
        if not self.sees:
            return
        if self.depth == 0:
            self.roots[module] = None
            self.mark(INSIDE)
            if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                self.synced.append(bool(module.require_backward_grad_sync))
        self.depth += 1
        own = own_parameters(module)
        if own or next(module.children(), None) is None:
            self.know(own)
            self.mark(USE, self.uses.setdefault((module, self.calls[module]), len(self.uses)))
            self.calls[module] += 1

    def left(self, module: Any, args: Any, output: Any) -> None:
        if not self.sees or not self.depth:
            return
        self.depth -= 1
        if (use := self.uses.get((module, self.calls[module] - 1))) is not None:
            self.await_back(use, output)
        if self.depth == 0:
            self.mark(OUTSIDE)

    def await_back(self, use: int, output: Any) -> None:
        """Hook the graph nodes that end a layer call."""
        for leaf in tree_leaves(output):
            node = leaf.grad_fn if isinstance(leaf, torch.Tensor) else None
            if node is not None and node not in self.nodes:  # shared if a module returns its input
                self.nodes.add(node)
                node.register_prehook(partial(self.told, BACK, use))

    def know(self, tensors: Any) -> None:
        for tensor in tensors:
            if tensor not in self.tensors and tensor.requires_grad and tensor.is_leaf:
                number = self.tensors[tensor] = len(self.tensors)
                ready = partial(self.told, READY, number)
                self.hooks.callback(tensor.register_post_accumulate_grad_hook(ready).remove)

    def told(self, kind: str, key: int, *_: Any) -> None:
        """Record an event of a backward pass; the pass itself reports its end."""
        if self.marks is None:
            return
        if not self.backward:
            self.backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self.ended)
        self.mark(kind, key)

    def ended(self) -> None:
        self.mark(END)
        self.begin_pass()
