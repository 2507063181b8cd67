"""Let a user's ``torch.optim`` optimiser update buckets: an instance of its class for each bucket.

    user's optimiser    groups: | weight, head | bias, norm |          hyperparameters, taken at ``step()``
    bucket 0            groups: | weight[0:6]  | bias       |          instance 0: views into the flat buffer
    bucket 1            groups: | weight[6:8], head | norm  |          instance 1

The instances have the user's class and hyperparameters, so an update has the bits of the user's optimiser. Optimisers
that look at whole tensors get buckets of whole tensors. The state of a parameter that one bucket holds *is* the user's
state; the state of a parameter in several buckets, or shards, is joined by ``collect``.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from dear_mpi.kernels.optimizers import Optimizer
from dear_mpi.torch.tensors import TorchParameter, tensor_of

MATRIX, HALVES = (6, 8), ((13,), (35,))  # tensors of a trial
REFUSED = {
    "LBFGS": "looks at all parameters at once and runs the model several times: take another",
    "SparseAdam": "takes sparse gradients, which travel as dense ones: take Adam",
}


def scope_of(optimizer: torch.optim.Optimizer) -> str:
    """Return whether an optimiser updates elements or tensors independently: ``element`` or ``tensor``.

    For each group, three steps on a matrix decide: by itself, with another one, and cut into two vectors.

    Raises:
        ValueError: an update depends on other parameters.
    """
    kind = type(optimizer).__name__
    if kind in REFUSED:
        raise ValueError(f"optimizer {kind} {REFUSED[kind]}")
    scope = "element"
    with torch.random.fork_rng(devices=[]):
        for group in optimizer.param_groups:
            alone = trial(optimizer, group, MATRIX)
            if not torch.equal(alone, trial(optimizer, group, MATRIX, MATRIX)):
                raise ValueError(f"optimizer {kind} updates parameters that depend on each other: take another")
            try:
                if not torch.equal(alone, trial(optimizer, group, *HALVES)):
                    scope = "tensor"
            except (ValueError, TypeError, RuntimeError, IndexError):  # e.g. Muon refuses vectors
                scope = "tensor"
    return scope


def trial(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], *shapes: Sequence[int]) -> Any:
    """Return the first 48 elements after three steps with tensors of these shapes."""
    device = group["params"][0].device if group["params"] else None
    sizes = [*map(math.prod, shapes)]
    rows = torch.randn((4, 96), generator=torch.Generator().manual_seed(1)).to(device)
    settings = hyper(group)
    if "lr" in settings:  # it may be 0 now, and may be a tensor
        settings["lr"] = 0 * settings["lr"] + 0.01
    values, *grads = (
        [part.clone().view(shape) for part, shape in zip(row[: sum(sizes)].split(sizes), shapes, strict=True)]
        for row in rows
    )
    made = another(optimizer, [{**settings, "params": values}])
    for each in grads:
        for value, grad in zip(values, each, strict=True):
            value.grad = grad
        with torch.no_grad():
            made.step()
    return torch.cat([value.flatten() for value in values])[:48]


def hyper(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's current hyperparameters; a tensor, such as a learning rate, is copied."""
    return {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def texts_of(groups: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what ranks compare: the values of each hyperparameter in all groups."""
    plain = (bool, int, float, str, tuple, torch.Tensor)
    names = dict.fromkeys(name for group in groups for name in group if name != "params")
    values = {name: [group.get(name) for group in groups] for name in names}
    return {name: str([each for each in found if isinstance(each, plain)]) for name, found in values.items()}


def another(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return an optimiser of the same class, with other parameters, no state and no hooks of the user."""
    made = object.__new__(type(optimizer))
    kept = {name: value for name, value in vars(optimizer).items() if name != "step"}  # schedulers wrap ``step``
    hooks: dict[str, Any] = {name: OrderedDict() for name in kept if name.endswith("_hooks")}
    made.__dict__.update(kept | hooks, state=defaultdict(dict), param_groups=groups)
    return made


@dataclass
class Piece:
    """A tensor, or the part of it that one bucket (or shard) holds: elements ``start`` to ``stop`` in memory order."""

    parameter: TorchParameter
    tensor: Any  # a leaf over the flat buffer's values
    grad: Any  # over the flat buffer's gradients, in the tensor's type
    sent: Any  # the averages as they travelled; perhaps the memory of ``grad``
    start: int
    stop: int

    @property
    def key(self) -> Any:
        return self.parameter.tensor

    @property
    def complete(self) -> bool:
        return bool(self.stop - self.start == self.key.numel())

    def average(self, factor: float) -> Any:
        """Return the averaged gradient, times a factor."""
        if self.sent is not self.grad:
            self.grad.copy_(self.sent)
        return self.grad if factor == 1 else self.grad.mul_(factor)

    def of(self, whole: Any) -> Any:
        return whole if self.complete else self.parameter.flat(whole)[self.start : self.stop]


class Instance:
    """Update one bucket, or this rank's shard of it, by an optimiser of the user's class."""

    def __init__(self, updates: UserUpdates, pieces: Sequence[Piece]) -> None:
        self.updates, self.pieces = updates, pieces
        groups: dict[int, list[Any]] = {}
        for piece in pieces:
            groups.setdefault(updates.group_of[piece.key], []).append(piece.tensor)
        self.numbers = list(groups)
        made = [{**updates.groups[number], "params": tensors} for number, tensors in groups.items()]
        self.optimizer = another(updates.optimizer, made)
        self.take_state()

    def take_state(self) -> None:
        for piece in self.pieces:
            state = self.updates.optimizer.state[piece.key]
            if not piece.complete:
                state = {name: part_of(value, piece) for name, value in state.items()}
            self.optimizer.state[piece.tensor] = state

    def keep(self) -> None:
        """Copy the state before an update (``elastic``)."""
        self.updates.wait()  # ranks may die meanwhile, and then there is no update
        self.kept = [copy.deepcopy(self.optimizer.state[piece.tensor]) for piece in self.pieces]

    def undo(self) -> None:
        for piece, kept in zip(self.pieces, self.kept, strict=True):
            state = self.optimizer.state[piece.tensor]  # perhaps also the user's
            state.clear()
            state.update(kept)

    def __call__(self, optimizer: Any, update: int, factor: float) -> None:
        """Update with averages from the flat buffer, or hand them to the user: see ``UserUpdates.handing_over``."""
        updates = self.updates
        updates.wait()
        for piece in self.pieces:
            grad, unused = piece.average(factor * updates.factor), piece.parameter in updates.unused
            if not updates.handing_over:
                piece.tensor.grad = None if unused else grad
            elif not unused:
                if piece.key.grad is None:  # other ranks have one
                    piece.key.grad = torch.zeros_like(piece.key)
                piece.of(piece.key.grad).copy_(grad)
        if not updates.handing_over:
            self.step()

    def step(self) -> None:
        if not self.pieces:  # of a small bucket; yet this rank must see with the others that a step fails
            return
        for number, group in zip(self.numbers, self.optimizer.param_groups, strict=True):
            group.update(self.updates.groups[number])
        # It may run in a forward pass, with the user's modes: they are not for updates.
        device = self.pieces[0].tensor.device.type
        with torch.inference_mode(mode=False), torch.no_grad(), torch.autocast(device, enabled=False):
            self.optimizer.step()
        for piece in self.pieces:
            piece.tensor.grad = None


class UserUpdates(Optimizer):
    """The user's optimiser, as the ``optimizer`` of a session.

    Attributes:
        groups: the hyperparameters of the user's groups at the last ``step()``.
        factor, unused: of averages, and the parameters without a gradient on any rank, once ``wait`` returns.
        handing_over: whether averages go to the user (``synchronize``) in place of an update.
        wrapped: the trained parameters.
        gather: gathers a value from all ranks, if each updates only its shards.
    """

    lr = 1.0  # the groups have their own
    in_arrays = False

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.scope = scope_of(optimizer)  # type: ignore[misc]
        self.group_of = {
            each: number for number, group in enumerate(optimizer.param_groups) for each in group["params"]
        }
        self.instances: dict[tuple[int, int], Instance] = {}
        self.wrapped: dict[Any, TorchParameter] = {}
        self.gather: Callable[[Any], Sequence[Any]] | None = None
        self.factor, self.unused, self.handing_over = 1.0, frozenset[TorchParameter](), False
        self.wait: Callable[[], None] = lambda: None
        self.take()

    def take(self) -> None:
        self.groups = [hyper(group) for group in self.optimizer.param_groups]

    def update(self, *args: Any) -> None:
        raise TypeError("the updates of a user's optimiser are made by bucket")

    def bind(self, bucket: Any) -> list[Instance]:
        """Return the update of a bucket's own part: an instance of the user's class on views into the flat buffer."""
        arena, own = bucket.arena, bucket.arena.shards.own(bucket.bucket)
        layout, pieces = arena.layout, []
        for number in layout.tensors(own.start, own.stop):
            parameter, offset = arena.parameters[number], layout.offsets[number]
            span = slice(max(own.start, offset), min(own.stop, layout.ends[number]))
            values, grads, wire = (tensor_of(array[span]) for array in (arena.values, arena.grads, arena.wire))
            if span.stop - span.start == parameter.tensor.numel():
                values, grads, wire = map(parameter.shaped, (values, grads, wire))
            leaf, sent = torch.nn.Parameter(values), grads if arena.wire is arena.grads else wire
            pieces.append(Piece(parameter, leaf, grads, sent, span.start - offset, span.stop - offset))
        made = self.instances[bucket.bucket.interval] = Instance(self, pieces)
        return [made]

    def distribute(self) -> None:
        """Give all instances their part of the user's state anew, after it was loaded."""
        for instance in self.instances.values():
            instance.take_state()
        self.take()

    def step_from_user(self) -> None:
        """Update by the gradients that the user holds: after ``synchronize``, or on one rank."""
        for instance in self.instances.values():
            for piece in instance.pieces:
                grad = piece.key.grad
                piece.tensor.grad = None if grad is None else piece.of(grad.to_dense()).to(piece.tensor.dtype)
            instance.step()

    def collect(self) -> None:
        """Put the state of divided parameters together in the user's optimiser. Collective if updates are sharded."""
        numbers = {parameter: number for number, parameter in enumerate(self.group_of)}
        found = [  # a complete one shares the user's dictionary
            (numbers[piece.key], piece.start, instance.optimizer.state[piece.tensor])
            for instance in self.instances.values()
            for piece in instance.pieces
            if self.gather is not None or not piece.complete
        ]
        if self.gather is not None:
            found = [each for rank in self.gather(found) for each in rank]
        parts = defaultdict(list)
        for number, _, state in sorted(found, key=itemgetter(0, 1)):
            parts[number].append(state)
        for parameter, number in numbers.items():
            if number in parts:
                self.optimizer.state[parameter] = joined(parts[number], self.wrapped[parameter])

    def begin_cut(self) -> None:
        self.collect()
        self.instances.clear()


def joined(parts: Sequence[dict[str, Any]], parameter: TorchParameter) -> dict[str, Any]:
    """Join the state of a parameter's parts. Numbers, such as a count of steps, are equal in all of them."""
    if len(parts) == 1 or not parts[0]:
        return parts[0]
    return {
        name: parameter.shaped(torch.cat([part[name] for part in parts]))
        if isinstance(value, torch.Tensor) and value.ndim
        else value
        for name, value in parts[0].items()
    }


def part_of(value: Any, piece: Piece) -> Any:
    if not isinstance(value, torch.Tensor):
        return copy.copy(value)
    return (piece.of(value) if value.ndim else value).clone()
