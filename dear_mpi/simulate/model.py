"""Describe a model for simulation: the places of parameters and the time of each layer, without arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.optimizer import Companion
from dear_mpi.models.synthetic import Module, shares_of
from dear_mpi.training.fabric.costs import Costs, Noise
from dear_mpi.training.line.bucket import Cut
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.line.owners import Owners, Ownership, Sharing
from dear_mpi.training.profiles.profile import Profile, Tensor

EVEN = Ownership()
MOST_ELEMENTS = 10**13  # keeps bytes far below the limit of int64


@dataclass(frozen=True, kw_only=True)
class Model:
    """Hold a model as layers that take time.

    Attributes:
        layout: of its parameters, for this number of ranks.
        names: of the layers.
        wire: the wire format of gradients.
        costs: of layers and updates, and the number of parts of a batch; independent of the network.
        value_size: bytes of an element of a parameter.
        owners: the ranks that update each part of a bucket.
        exchange_bytes: of each exchanging layer, by number: for all ranks together, before each pass.
    """

    name: str
    layout: Layout
    names: tuple[str, ...]
    wire: str
    costs: Costs
    owners: Owners = field(default_factory=Owners)
    value_size: int = DTYPES["fp32"].itemsize
    exchange_bytes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        layers: Iterable[tuple[str, Sequence[Tensor]]],
        costs: Costs,
        *,
        ranks: int,
        wire: str,
        dtype: str,
        ownership: Ownership,
        whole: bool = False,
    ) -> Model:
        """Make a model of layers with these names and tensors. Raises ValueError for an unknown type or too many
        elements."""
        names, uses = zip(*layers, strict=True)
        itemsize, value_size = lookup("wire", wire, DTYPES).itemsize, DTYPES[dtype].itemsize
        sizes = {"itemsize": itemsize, "value_size": value_size, "ranks": ranks}
        tensors = [[(tensor.key, tensor.shape) for tensor in use] for use in uses]
        layout = Layout.of(tensors, whole=ownership.whole or whole, **sizes)
        first = {tensor.key: tensor for use in uses for tensor in use}.values()
        owners = ownership.owners(ranks, (each.cost(ownership.optimizer) for each in first if ownership.optimizer))
        how: dict[str, Any] = {"wire": wire, "costs": costs, "value_size": value_size, "owners": owners}
        model = cls(name=name, layout=layout, names=names, **how)
        if model.params > MOST_ELEMENTS:
            raise ValueError(f"model {name!r} has {model.params} parameters: simulate takes at most {MOST_ELEMENTS}")
        return model

    def sharing(self, buckets: Cut) -> Sharing:
        """Return each rank's part of these buckets."""
        return Sharing(self.owners, self.layout, buckets)

    def shared(self, noise: Noise) -> Noise:
        """Scale layer noise to each rank's share of the batch."""
        if self.owners.weights is None:
            return noise
        shares = np.array(self.owners.speeds) * self.owners.ranks
        return lambda turn, place: shares * noise(turn, place)

    @property
    def params(self) -> int:
        return sum(self.layout.owned)


def synthetic_model(
    name: str,
    modules: Sequence[Module],
    *,
    ranks: int,
    forward_s: float,
    backward_s: float,
    wire: str = "fp32",
    parts: int = 1,
    ownership: Ownership = EVEN,
) -> Model:
    """Make a model from a table, with fp32 parameters; layers share the seconds in proportion to their FLOPs.

    Some optimisers send more than gradients (``Optimizer.companion``): its FLOPs count at the rate of the forward pass.

    Args:
        modules: see ``load_modules``.
        forward_s, backward_s: of all layers without companions, in each part of a batch.
        ownership: decides which rank updates which part.

    Raises:
        ValueError: there is no such type, there are too many elements, or layers lack companions.

    >>> from dear_mpi.models.synthetic import load_modules
    >>> modules = load_modules("resnet50")
    >>> model = synthetic_model("synthetic:resnet50", modules, ranks=64, forward_s=0.1, backward_s=0.2)
    >>> len(model.names), model.layout.count
    (107, 25559040)
    """
    ask = ownership.optimizer and ownership.optimizer.companion
    asked = {at: ask(*each.matrix, each.rows) for at, each in enumerate(modules) if ask and each.matrix}
    beside = {at: each for at, each in asked.items() if each}
    check_companions(name, ownership, "its table must say out_elems of modules", found=bool(beside))
    keys = count()
    layers = [(module.name, tensors_of(module, keys, beside.get(at))) for at, module in enumerate(modules)]
    ahead, back = shares_of(modules)
    forward, backward = [share * forward_s for share in ahead], [share * backward_s for share in back]
    weights = {at: module.weights * backward[at] for at, module in enumerate(modules) if module.counts}
    flop_s = forward_s / sum(module.flops for module in modules) if beside else 0.0
    for at, each in beside.items():
        backward[at] += flop_s * each.backward_flops
        weights[at] += flop_s * each.backward_flops
    costs = Costs(forward_s=forward, backward_s=backward, weights_s=weights, parts=parts)
    model = Model.of(name, layers, costs, ranks=ranks, wire=wire, dtype="fp32", ownership=ownership)
    update_s = flop_s * sum(each.update_flops for each in beside.values()) / model.layout.count
    exchanged = {at: module.exchange_bytes for at, module in enumerate(modules) if module.exchange_bytes}
    return replace(model, exchange_bytes=exchanged, costs=replace(costs, update_s=update_s))


def tensors_of(module: Module, keys: Iterator[int], companion: Companion | None) -> list[Tensor]:
    found = [Tensor(next(keys), (elements,)) for elements in module.counts]
    return [*found, Tensor(next(keys), (companion.elements,), None, companion.cost)] if companion else found


def measured_model(
    profile: Profile,
    *,
    ranks: int,
    wire: str,
    parts: int | None = None,
    ownership: Ownership = EVEN,
    whole: bool = False,
) -> Model:
    """Make the profiled model on any number of ranks: each computes as much as one profiled rank.

    Args:
        parts: of the batch of an iteration; default: as in the profile.
        ownership: decides which rank updates which part.
        whole: whether buckets must have whole tensors.

    Raises:
        ValueError: as for ``synthetic_model``.
    """
    check_companions(
        profile.model, ownership, "take its profile under the same optimizer", found=profile.has_companions
    )
    layers = [(use.name, use.tensors) for use in profile.uses]
    how: dict[str, Any] = {"ranks": ranks, "wire": wire, "dtype": profile.dtype, "ownership": ownership, "whole": whole}
    return Model.of(profile.model, layers, profile.costs(parts), **how)


def has_companions(ownership: Ownership) -> bool:
    """Return whether layers send more than gradients, such as K-FAC's factors."""
    return ownership.optimizer is not None and not ownership.optimizer.gradients_alone


def check_companions(name: str, ownership: Ownership, remedy: str, *, found: bool) -> None:
    """Check that layers have companions exactly if the optimiser needs them. Raises ValueError."""
    if found != has_companions(ownership):
        said = "sends more than gradients, which its optimizer does not" if found else "sends gradients alone"
        raise ValueError(f"model {name!r} {said}: {remedy}")
