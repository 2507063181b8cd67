"""Describe a model for simulation, without arrays: each layer's parameters and time, of a profile.

A table is read as a profile of layers that share the given seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.synthetic import Module, both_passes, load_modules, measured_seconds, shares_of
from dear_mpi.simulate.settings import Settings
from dear_mpi.training.buckets.layout import Cut, Layout
from dear_mpi.training.buckets.owners import Owners, Ownership, Sharing
from dear_mpi.training.events.profile import Profile, Tensor, Use
from dear_mpi.training.fabric.virtual import Costs, Noise, steady
from dear_mpi.training.routes.find import is_code
from dear_mpi.training.routes.invariant import shares

SYNTHETIC = "synthetic:"
EVEN = Ownership()
MOST_ELEMENTS = 10**13  # elements: bytes fit in int64


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as layers that take time.

    Attributes:
        layout: of its parameters, for this number of ranks.
        costs: of layers and updates, and the number of parts of a batch; independent of the network.
        value_size: bytes of an element of a parameter.
        exchange_bytes: by layer: for all ranks together, before each pass.
    """

    name: str
    layout: Layout
    names: tuple[str, ...]
    costs: Costs
    owners: Owners = field(default_factory=Owners)
    value_size: int = DTYPES["fp32"].itemsize
    exchange_bytes: Mapping[int, int] = field(default_factory=dict)

    def sharing(self, buckets: Cut) -> Sharing:
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

    Raises:
        ValueError: an unknown type, too many elements, or layers that do not send what the optimiser needs.
    """
    name, optimizer = profile.model, ownership.optimizer
    if profile.has_companions == (optimizer is None or optimizer.gradients_alone):
        sent = "more than gradients, which its optimizer does not" if profile.has_companions else "gradients alone"
        remedy = "take its profile under the same optimizer, or a table with out_elems"
        raise ValueError(f"model {name!r} sends {sent}: {remedy}")
    itemsize, value_size = lookup("wire", wire, DTYPES).itemsize, DTYPES[profile.dtype].itemsize
    tensors = [[(tensor.key, tensor.shape) for tensor in use.tensors] for use in profile.uses]
    sizes = {"itemsize": itemsize, "value_size": value_size, "ranks": ranks}
    first = {tensor.key: tensor for use in profile.uses for tensor in use.tensors}.values()
    model = Model(
        name=name,
        layout=Layout.of(tensors, whole=ownership.whole or whole, **sizes),
        names=tuple(use.name for use in profile.uses),
        costs=profile.costs(parts),
        owners=ownership.owners(ranks, (each.cost(optimizer) for each in first if optimizer)),
        value_size=value_size,
    )
    if model.params > MOST_ELEMENTS:
        raise ValueError(f"model {name!r} has {model.params} parameters: simulate takes at most {MOST_ELEMENTS}")
    return model


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

    The seconds are of each of the ``parts`` of a batch. ValueError: as for ``measured_model``.

    >>> from dear_mpi.models.synthetic import load_modules
    >>> modules = load_modules("resnet50")
    >>> model = synthetic_model("synthetic:resnet50", modules, ranks=64, forward_s=0.1, backward_s=0.2)
    >>> len(model.names), model.layout.count
    (107, 25559040)
    """
    keys, uses = count(), list[Use]()
    for module, ahead, back in zip(modules, *shares_of(modules), strict=True):
        tensors = tuple(Tensor(next(keys), (elements,)) for elements in module.counts)
        ahead_s, back_s = parts * ahead * forward_s, parts * back * backward_s
        uses.append(Use(module.name, tensors, ahead_s, back_s, module.weights * back_s if tensors else 0.0))
    profile = Profile(
        model=name,
        device="cpu",
        ranks=1,
        rank=0,
        batch=None,
        accumulate=parts,
        dtype="fp32",
        wire=wire,
        schedule="sequential",
        iterations=1,
        update_s_per_element=0.0,
        rest_s=0.0,
        uses=tuple(uses),
    )
    if ownership.optimizer is not None:
        profile = ownership.optimizer.profiled(profile, modules)
    model = measured_model(profile, ranks=ranks, wire=wire, ownership=ownership)
    costs = replace(model.costs, update_s=model.costs.update_s * model.params / model.layout.count)
    exchanged = {at: module.exchange_bytes for at, module in enumerate(modules) if module.exchange_bytes}
    return replace(model, exchange_bytes=exchanged, costs=costs)


def model_of(settings: Settings, name: str, ranks: int) -> Model:
    profile, parts = settings.scaled, settings.accumulate
    if settings.invariant is not None:  # the rank that has most micro-batches is last
        parts = (parts or 1) * max(map(len, shares(max(settings.invariant, ranks), ranks)))
    wire = settings.types[0] if is_code(settings.wire) else settings.wire_name
    how: dict[str, Any] = {"ranks": ranks, "wire": wire, "ownership": settings.ownership(ranks)}
    if profile is None:
        if not name.startswith(SYNTHETIC):
            others = "others need a profile (--profile FILE, from dear-mpi train)"
            raise ValueError(f"simulate takes synthetic models, as synthetic:resnet50, not {name!r}: {others}")
        table = name.removeprefix(SYNTHETIC)
        modules = load_modules(table)
        if measured_seconds(modules) is not None:
            raise ValueError(f"model {name!r} is a profile: give it as --profile {table}")
        forward_s, backward_s = both_passes(settings.forward_s, settings.backward_s)
        model = synthetic_model(name, modules, forward_s=forward_s, backward_s=backward_s, parts=parts or 1, **how)
    elif name == profile.model:
        model = measured_model(profile, parts=parts, whole=settings.chosen_route.whole, **how)
    else:
        raise ValueError(f"profile of another model: it is of {profile.model!r}, not of {name!r}")
    costs = model.costs if settings.update_s is None else replace(model.costs, update_s=settings.update_s)
    return replace(model, costs=crowded(costs, settings.ranks_per_core, asleep=name.startswith(SYNTHETIC)))


def crowded(costs: Costs, ranks: float, *, asleep: bool) -> Costs:
    """Scale compute times for ranks that take turns on a core; layers keep theirs if ``asleep``."""
    names = ("rest_s", "code_factor", "start_s", "wake_s")
    longer: dict[str, Any] = {name: ranks * getattr(costs, name) for name in names}
    if not asleep:
        longer |= {name: [ranks * each for each in getattr(costs, name)] for name in ("forward_s", "backward_s")}
        longer["weights_s"] = {use: ranks * each for use, each in costs.weights_s.items()}
    return replace(costs, ranks_per_core=ranks, **longer)


def compute_keys(settings: Settings, costs: Costs) -> dict[str, Any]:
    profile = settings.scaled
    if profile is None:
        passes = both_passes(settings.forward_s, settings.backward_s)
        text, origin = "{:g} s forward and {:g} s backward".format(*passes), "given"
    elif profile is settings.profile:
        text, origin = str(profile), "measured"
    else:
        scaled = ", scaled to {:.4g} s forward and {:.4g} s backward".format(*profile.passes_s)
        text, origin = f"{profile}{scaled}", "measured, scaled"
    return {
        "compute": text,
        "compute_origin": origin,
        "update_s_per_element": costs.update_s,
        "update_origin": origin if settings.update_s is None else "given",
    }
