"""Describe a model for simulation: the places of parameters and the time of each layer, without arrays.

The seconds of all layers together are given, or come from a measured profile, which can be scaled to given seconds. By
default the passes take 0.1 and 0.2 seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.synthetic import Module, both_passes, load_modules, measured_seconds, shares_of
from dear_mpi.simulate.settings import Settings
from dear_mpi.training.fabric.costs import Costs, Noise, steady
from dear_mpi.training.flat_buffer.bucket import Cut
from dear_mpi.training.flat_buffer.layout import Layout
from dear_mpi.training.flat_buffer.owners import Owners, Ownership, Sharing
from dear_mpi.training.profile import Profile, Tensor
from dear_mpi.training.routes.find import is_code

SYNTHETIC = "synthetic:"  # models with sleeping layers
EVEN = Ownership()
MOST_ELEMENTS = 10**13  # keeps bytes far below the limit of int64


@dataclass(frozen=True, kw_only=True)
class Model:
    """Hold a model as layers that take time.

    Attributes:
        layout: of its parameters, for this number of ranks.
        names: of the layers.
        costs: of layers and updates, and the number of parts of a batch; independent of the network.
        value_size: bytes of an element of a parameter.
        owners: the ranks that update each part of a bucket.
        exchange_bytes: of each exchanging layer, by number: for all ranks together, before each pass.
    """

    name: str
    layout: Layout
    names: tuple[str, ...]
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
        """Make a model of layers with these names and tensors."""
        names, uses = zip(*layers, strict=True)
        itemsize, value_size = lookup("wire", wire, DTYPES).itemsize, DTYPES[dtype].itemsize
        sizes = {"itemsize": itemsize, "value_size": value_size, "ranks": ranks}
        tensors = [[(tensor.key, tensor.shape) for tensor in use] for use in uses]
        layout = Layout.of(tensors, whole=ownership.whole or whole, **sizes)
        first = {tensor.key: tensor for use in uses for tensor in use}.values()
        owners = ownership.owners(ranks, (each.cost(ownership.optimizer) for each in first if ownership.optimizer))
        model = cls(name=name, layout=layout, names=names, costs=costs, value_size=value_size, owners=owners)
        if model.params > MOST_ELEMENTS:
            raise ValueError(f"model {name!r} has {model.params} parameters: simulate takes at most {MOST_ELEMENTS}")
        return model

    def sharing(self, buckets: Cut) -> Sharing:
        """Return each rank's part of these buckets."""
        return Sharing(self.owners, self.layout, buckets)

    @property
    def noise(self) -> Noise:
        """Scale layers to each rank's share of the batch."""
        if self.owners.weights is None:
            return steady
        shares = np.array(self.owners.speeds) * self.owners.ranks
        return lambda turn, place: shares

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
    keys, layers = count(), list[tuple[str, list[Tensor]]]()
    for at, module in enumerate(modules):
        tensors = [Tensor(next(keys), (elements,)) for elements in module.counts]
        if at in beside:
            tensors.append(Tensor(next(keys), (beside[at].elements,), None, beside[at].cost))
        layers.append((module.name, tensors))
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
        whole: whether buckets must have whole tensors.
    """
    remedy = "take its profile under the same optimizer"
    check_companions(profile.model, ownership, remedy, found=profile.has_companions)
    layers = [(use.name, use.tensors) for use in profile.uses]
    how: dict[str, Any] = {"ranks": ranks, "wire": wire, "dtype": profile.dtype, "ownership": ownership, "whole": whole}
    return Model.of(profile.model, layers, profile.costs(parts), **how)


def has_companions(ownership: Ownership) -> bool:
    """Return whether layers send more than gradients, such as K-FAC's factors."""
    return ownership.optimizer is not None and not ownership.optimizer.gradients_alone


def check_companions(name: str, ownership: Ownership, remedy: str, *, found: bool) -> None:
    """Check that layers have companions exactly if the optimiser needs them. Raises ValueError."""
    if found != has_companions(ownership):
        sent = "more than gradients, which its optimizer does not" if found else "gradients alone"
        raise ValueError(f"model {name!r} sends {sent}: {remedy}")


def model_of(settings: Settings, name: str, ranks: int) -> Model:
    """Return the named model. Raises ValueError if there is no such model or type."""
    profile, parts = settings.scaled, settings.accumulate
    how: dict[str, Any] = {
        "ranks": ranks,
        "wire": settings.types[0] if is_code(settings.wire) else settings.wire_name,
        "ownership": settings.ownership(ranks),
    }
    if profile is None:
        if not name.startswith(SYNTHETIC):
            others = "others need a profile (--profile FILE, from dear-mpi train)"
            raise ValueError(f"simulate takes synthetic models, as synthetic:resnet50, not {name!r}: {others}")
        table = name.removeprefix(SYNTHETIC)
        modules = load_modules(table)
        if measured_seconds(modules) is not None:
            raise ValueError(f"model {name!r} is a profile: give it as --profile {table}")
        forward_s, backward_s = both_passes(settings.forward_s, settings.backward_s)
        how |= {"forward_s": forward_s, "backward_s": backward_s, "parts": parts or 1}
        model = synthetic_model(name, modules, **how)
    elif name == profile.model:
        model = measured_model(profile, parts=parts, whole=settings.chosen_route.whole, **how)
    else:
        raise ValueError(f"profile of another model: it is of {profile.model!r}, not of {name!r}")
    costs = model.costs if settings.update_s is None else replace(model.costs, update_s=settings.update_s)
    return replace(model, costs=crowded(costs, settings.ranks_per_core, asleep=name.startswith(SYNTHETIC)))


def crowded(costs: Costs, ranks: float, *, asleep: bool) -> Costs:
    """Scale compute times for ranks that take turns on a core, which layers need unless they are ``asleep``."""
    names = ("rest_s", "code_factor", "start_s", "wake_s")
    longer: dict[str, Any] = {name: ranks * getattr(costs, name) for name in names}
    if not asleep:
        longer |= {name: [ranks * each for each in getattr(costs, name)] for name in ("forward_s", "backward_s")}
        longer["weights_s"] = {use: ranks * each for use, each in costs.weights_s.items()}
    return replace(costs, ranks_per_core=ranks, **longer)


def compute_text(settings: Settings) -> tuple[str, str]:
    """Describe a row's compute times, and name their source."""
    profile = settings.scaled
    if profile is None:
        return "{:g} s forward and {:g} s backward".format(
            *both_passes(settings.forward_s, settings.backward_s)
        ), "given"
    if profile is settings.profile:
        return str(profile), "measured"
    scaled = ", scaled to {:.4g} s forward and {:.4g} s backward".format(*profile.passes_s)
    return f"{profile}{scaled}", "measured, scaled"


def update_origin(settings: Settings) -> str:
    """Name the source of update times."""
    told = settings.profile is not None or has_companions(settings.ownership(1))
    return compute_text(settings)[1] if settings.update_s is None and told else "given"
