"""Let a user's ``torch.optim`` optimiser update buckets: an instance of its class for each bucket.

    user's optimiser    groups: | weight, head | bias, norm |          hyperparameters, taken at ``step()``
    bucket 0            groups: | weight[0:6]  | bias       |          instance 0: views into the flat buffer
    bucket 1            groups: | weight[6:8], head | norm  |          instance 1

The instances have the user's class and hyperparameters, so an update has the bits of the user's optimiser. Optimisers
that look at whole tensors (``is_elementwise``) get buckets of whole tensors. The state of a parameter that one bucket
holds *is* the user's state; the state of a parameter in several buckets, or shards, is joined by ``collect``.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from dear_mpi.kernels.optimizer import Optimizer
from dear_mpi.torch.tensors import tensor_of


def is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimiser gives the same bits on parts of a tensor: three steps on a matrix, whole and cut."""
    generator = torch.Generator().manual_seed(1)
    dtype = torch.get_default_dtype()
    values = torch.randn((6, 8), generator=generator, dtype=dtype)
    whole, (head, tail) = [values.clone()], (values.flatten()[:13].clone(), values.flatten()[13:].clone())
    instances = []
    for tensors in (whole, [head, tail]):
        instance = another(optimizer, [{**hyper(optimizer.param_groups[0]), "params": tensors}])
        instances.append((instance, tensors))
    try:
        for _ in range(3):
            grad = torch.randn((6, 8), generator=generator, dtype=dtype)
            for instance, tensors in instances:
                parts = [grad] if len(tensors) == 1 else [grad.flatten()[:13], grad.flatten()[13:]]
                for tensor, part in zip(tensors, parts, strict=True):
                    tensor.grad = part.clone()
                with torch.no_grad():
                    instance.step()
    except (ValueError, TypeError, RuntimeError, IndexError):  # e.g. Muon refuses vectors
        return False
    return bool(torch.equal(whole[0].flatten(), torch.cat([head, tail])))


def hyper(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's hyperparameters as they are now; a tensor, such as a learning rate, is copied."""
    return {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def another(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return an optimiser of the same class, with other parameters, no state and no hooks of the user."""
    made = object.__new__(type(optimizer))
    kept = {name: value for name, value in vars(optimizer).items() if name != "step"}  # schedulers wrap ``step``
    hooks = {name: OrderedDict() for name, value in kept.items() if isinstance(value, OrderedDict) and "hooks" in name}
    made.__dict__.update(kept | hooks, state=defaultdict(dict), param_groups=groups)
    return made


@dataclass
class Piece:
    """A tensor, or the part of it that one bucket (or shard) holds: elements ``start`` to ``stop``."""

    parameter: Any  # the user's
    tensor: Any  # a leaf over the flat buffer's values
    grad: Any  # over the flat buffer's gradients, in the tensor's type
    sent: Any  # the averages as they travelled; perhaps the memory of ``grad``
    start: int
    stop: int

    @property
    def complete(self) -> bool:
        return bool(self.stop - self.start == self.parameter.numel())

    def average(self, factor: float) -> Any:
        """Return the averaged gradient, times a factor."""
        if self.sent is not self.grad:
            self.grad.copy_(self.sent)
        return self.grad if factor == 1 else self.grad.mul_(factor)

    def of(self, whole: Any) -> Any:
        """Return this piece's part of a tensor of the parameter's shape."""
        return whole if self.complete else whole.reshape(-1)[self.start : self.stop]


class Instance:
    """Update one bucket, or this rank's shard of it, by an optimiser of the user's class."""

    def __init__(self, updates: UserUpdates, pieces: Sequence[Piece]) -> None:
        self.updates, self.pieces = updates, pieces
        groups: dict[int, list[Any]] = {}
        for piece in pieces:
            groups.setdefault(updates.group_of[piece.parameter], []).append(piece.tensor)
        self.numbers = list(groups)
        made = [{**updates.groups[number], "params": tensors} for number, tensors in groups.items()]
        self.optimizer = another(updates.optimizer, made)

    def __call__(self, optimizer: Any, update: int, factor: float) -> None:
        """Update with averages from the flat buffer, or only hand them to the user: see ``UserUpdates.hand_over``."""
        updates = self.updates
        updates.wait()
        for piece in self.pieces:
            grad = piece.average(factor * updates.factor)
            if updates.handing_over:
                piece.of(piece.parameter.grad).copy_(grad)
            else:
                piece.tensor.grad = None if piece.parameter in updates.unused else grad
        if not updates.handing_over:
            self.step()

    def step(self) -> None:
        for number, group in zip(self.numbers, self.optimizer.param_groups, strict=True):
            group.update(self.updates.groups[number])
        with torch.no_grad():
            self.optimizer.step()
        for piece in self.pieces:
            piece.tensor.grad = None


class UserUpdates(Optimizer):
    """The user's optimiser, as the ``optimizer`` of a session.

    Args:
        whole: whether it must see whole tensors.

    Attributes:
        groups: the hyperparameters of the user's groups at the last ``step()``.
        factor, unused: of averages, and the parameters without a gradient on any rank, once ``wait`` returns.
        handing_over: whether averages go to the user (``synchronize``) in place of an update.
    """

    lr = 1.0  # the groups have their own

    def __init__(self, optimizer: torch.optim.Optimizer, *, whole: bool) -> None:
        self.optimizer = optimizer
        self.scope = "tensor" if whole else "element"  # type: ignore[misc]
        self.group_of = {
            each: number for number, group in enumerate(optimizer.param_groups) for each in group["params"]
        }
        self.instances: dict[tuple[int, int], Instance] = {}
        self.factor, self.unused, self.handing_over = 1.0, frozenset[Any](), False
        self.wait: Callable[[], None] = lambda: None
        self.take()

    def take(self) -> None:
        """Take the hyperparameters of the user's groups as they are now."""
        self.groups = [hyper(group) for group in self.optimizer.param_groups]

    def update(self, *args: Any) -> None:
        raise TypeError("the updates of a user's optimiser are made by bucket")

    def bind(self, bucket: Any) -> list[Instance]:
        """Return the update of a bucket's own part: an instance of the user's class on views into the flat buffer.

        Args:
            bucket: a ``BoundBucket``.
        """
        arena, own = bucket.arena, bucket.arena.shards.of(bucket.bucket)
        layout, pieces = arena.layout, []
        for number in layout.tensors(own.start, own.stop):
            parameter, offset = arena.parameters[number].tensor, layout.offsets[number]
            span = slice(max(own.start, offset), min(own.stop, layout.ends[number]))
            complete = span.stop - span.start == parameter.numel()
            shape = parameter.shape if complete else (span.stop - span.start,)
            values, grads, wire = (
                tensor_of(array[span]).view(shape) for array in (arena.values, arena.grads, arena.wire)
            )
            sent = grads if arena.wire is arena.grads else wire
            leaf = torch.nn.Parameter(values, requires_grad=True)
            pieces.append(Piece(parameter, leaf, grads, sent, span.start - offset, span.stop - offset))
        made = self.instances[bucket.bucket.interval] = Instance(self, pieces)
        for piece in pieces:
            self.give(made, piece)
        return [made] if pieces else []

    def give(self, instance: Instance, piece: Piece) -> None:
        """Give an instance its part of the user's state."""
        state = self.optimizer.state[piece.parameter]
        if not piece.complete:
            state = {name: part_of(value, piece) for name, value in state.items()}
        instance.optimizer.state[piece.tensor] = state

    def distribute(self) -> None:
        """Give all instances their part of the user's state anew, after it was loaded."""
        for instance in self.instances.values():
            for piece in instance.pieces:
                self.give(instance, piece)
        self.take()

    def step_from_user(self) -> None:
        """Update by the gradients that the user holds, after ``synchronize``."""
        for instance in self.instances.values():
            for piece in instance.pieces:
                grad = piece.parameter.grad
                piece.tensor.grad = None if grad is None else piece.of(grad)
            instance.step()

    def collect(self, gather: Callable[[Any], Sequence[Any]] | None = None) -> None:
        """Put the state of divided parameters together in the user's optimiser.

        Args:
            gather: gathers a value from all ranks, if each has only its shards.
        """
        names = {parameter: number for number, parameter in enumerate(self.group_of)}
        parts: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for instance in self.instances.values():
            for piece in instance.pieces:
                if gather is not None or not piece.complete:  # a complete one shares the user's dictionary
                    state = instance.optimizer.state[piece.tensor]
                    parts.setdefault(names[piece.parameter], []).append((piece.start, state))
        if gather is not None:
            ranks, parts = gather(parts), {}
            for rank in ranks:
                for number, found in rank.items():
                    parts.setdefault(number, []).extend(found)
        for parameter, number in names.items():
            if number in parts:
                found = [state for _, state in sorted(parts[number], key=itemgetter(0))]
                self.optimizer.state[parameter].update(joined(found, parameter))


def joined(parts: Sequence[dict[str, Any]], parameter: Any) -> dict[str, Any]:
    """Join the state of a parameter's parts. Numbers, such as a count of steps, are equal in all of them."""
    if len(parts) == 1 or not parts[0]:
        return parts[0]
    return {
        name: torch.cat([part[name].reshape(-1) for part in parts]).reshape(parameter.shape)
        if isinstance(value, torch.Tensor) and value.ndim
        else value
        for name, value in parts[0].items()
    }


def part_of(value: Any, piece: Piece) -> Any:
    """Return a piece's part of a value of the state, in its own memory."""
    if not isinstance(value, torch.Tensor):
        return copy.copy(value)
    return (piece.of(value) if value.ndim else value).clone()
