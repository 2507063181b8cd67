"""What is simulated of a model: where its parameters lie, and how long each layer takes; it has no arrays.

The seconds of layers are given for all together, or FLOPs at a rate, or measured in a run. A profile may be scaled to
what is given, or to a rate. If nothing is given, the passes take 0.1 and 0.2 seconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.paper_models import Module, both_passes, load_batch, load_modules, measured_seconds, shares_of
from dear_mpi.reporting.units import check_seconds
from dear_mpi.simulate.settings import Settings
from dear_mpi.training.fabric.costs import Costs, Noise
from dear_mpi.training.line.bucket import Cut
from dear_mpi.training.line.layout import Layout, Shape
from dear_mpi.training.line.owners import Owners, Ownership, Sharing
from dear_mpi.training.profiles.profile import Profile

EVEN = Ownership()
MOST_ELEMENTS = 10**13  # bytes then stay far below what an int64 counts


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as layers that take time.

    Attributes:
        layout: of its parameters, for this number of ranks.
        names: of the layers.
        wire: the type of gradients on their way.
        costs: of layers and updates, and into how many parts a batch is split; of the network it knows nothing.
        value_size: bytes of an element of a parameter.
        owners: who updates which part of buckets.
        exchange_bytes: that a layer has for all ranks together, before each pass, by its number.
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
        layers: Iterable[tuple[str, Sequence[tuple[Hashable, Shape]]]],
        costs: Costs,
        *,
        ranks: int,
        wire: str,
        dtype: str,
        ownership: Ownership,
        whole: bool = False,
    ) -> Model:
        """A model of layers with these names and tensors; a ValueError if there is no such type, or too much of it."""
        names, uses = zip(*layers, strict=True)
        itemsize, value_size = lookup("wire", wire, DTYPES).itemsize, DTYPES[dtype].itemsize
        sizes = {"itemsize": itemsize, "value_size": value_size, "ranks": ranks}
        layout = Layout.of(uses, whole=ownership.whole or whole, **sizes)
        model = cls(name=name, layout=layout, names=names, wire=wire, costs=costs, value_size=value_size)
        model = replace(model, owners=ownership.owners(ranks, ownership.costs(layout.shapes)))
        if model.params > MOST_ELEMENTS:
            raise ValueError(f"model {name!r} has {model.params} parameters: simulate takes at most {MOST_ELEMENTS}")
        return model

    def sharing(self, buckets: Cut) -> Sharing:
        """Who has which part of these buckets."""
        return Sharing(self.owners, self.layout, buckets)

    def shared(self, noise: Noise) -> Noise:
        """The same noise of layers, where each rank has its share of the batch."""
        if self.owners.weights is None:
            return noise
        shares = np.array(self.owners.speeds) * self.owners.ranks
        return lambda turn, place: shares * noise(turn, place)

    @property
    def params(self) -> int:
        """How many elements are trained."""
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
    """A model of a table, with parameters of fp32, whose layers share the seconds in proportion to their FLOPs.

    Args:
        modules: see ``load_modules``.
        forward_s, backward_s: of all layers, in each part of a batch.
        ownership: who updates what.

    Raises:
        ValueError: there is no such type, or there are too many elements.

    >>> modules = load_modules("resnet50")
    >>> model = synthetic_model("synthetic:resnet50", modules, ranks=64, forward_s=0.1, backward_s=0.2)
    >>> len(model.names), model.layout.count
    (107, 25559040)
    """
    layers = [
        (module.name, [(f"{number}.{place}", (count,)) for place, count in enumerate(module.counts)])
        for number, module in enumerate(modules)
    ]
    ahead, back = shares_of(modules)
    forward, backward = [share * forward_s for share in ahead], [share * backward_s for share in back]
    weights = {at: module.weights * backward[at] for at, module in enumerate(modules) if module.counts}
    costs = Costs(forward_s=forward, backward_s=backward, weights_s=weights, parts=parts)
    model = Model.of(name, layers, costs, ranks=ranks, wire=wire, dtype="fp32", ownership=ownership)
    exchanged = {at: module.exchange_bytes for at, module in enumerate(modules) if module.exchange_bytes}
    return replace(model, exchange_bytes=exchanged)


def measured_model(
    profile: Profile,
    *,
    ranks: int,
    wire: str,
    parts: int | None = None,
    ownership: Ownership = EVEN,
    whole: bool = False,
) -> Model:
    """The model that was profiled, on any number of ranks: each computes what one of the profiled ranks did.

    Args:
        parts: into how many the batch of an iteration is split; as in the profile, if it is not given.
        ownership: who updates what.
        whole: whether buckets must have whole tensors.

    Raises:
        ValueError: as for ``synthetic_model``.
    """
    layers = [(use.name, [(tensor.key, tensor.shape) for tensor in use.tensors]) for use in profile.uses]
    seen = {tensor.key: tensor.seen for use in profile.uses for tensor in use.tensors}
    how: dict[str, Any] = {"ranks": ranks, "wire": wire, "dtype": profile.dtype, "ownership": ownership, "whole": whole}
    model = Model.of(profile.model, layers, profile.costs(parts), **how)
    return replace(model, owners=ownership.owners(ranks, ownership.costs(seen.values())))


def model_of(settings: Settings, name: str, ranks: int) -> Model:
    """The model of this name, on so many ranks.

    Raises:
        ValueError: there is none, no such type, or what was given of its seconds has no meaning for it.
    """
    profile, parts = measured(settings), settings.accumulate
    how: dict[str, Any] = {"ranks": ranks, "wire": settings.line_type_name, "ownership": settings.ownership(ranks)}
    if profile is None:
        modules = modules_of(name)
        forward_s, backward_s = passes_s(settings, name, modules)
        how |= {"forward_s": forward_s, "backward_s": backward_s}
        return synthetic_model(name, modules, parts=parts or 1, **how)
    if name != profile.model:
        raise ValueError(f"profile of another model: it is of {profile.model!r}, not of {name!r}")
    return measured_model(profile, parts=parts, whole=settings.chosen_route.whole, **how)


def measured(settings: Settings) -> Profile | None:
    """The profile, scaled to what else was given."""
    profile, rate = settings.profile, settings.flops_per_s
    if profile is None or not is_scaled(settings):
        return profile
    forward_s = settings.forward_s if rate is None else forward_at(profile, rate, settings.batch)
    return profile.scaled(forward_s, settings.backward_s)


def is_scaled(settings: Settings) -> bool:
    return any(each is not None for each in (settings.forward_s, settings.backward_s, settings.flops_per_s))


def forward_at(profile: Profile, flops_per_s: float, batch: int | None) -> float:
    """Seconds of the forward pass at a rate, with a batch of so many examples on each rank."""
    if profile.forward_flops is None:
        raise ValueError(f"--rate: the profile of {profile.model!r} has no FLOPs (forward_flops): give --forward-time")
    if batch is not None and profile.batch is None:
        raise ValueError(f"--batch: the profile of {profile.model!r} has no batch")
    share = 1.0 if batch is None or profile.batch is None else batch * profile.ranks / profile.batch
    return check_seconds("--rate: forward_time", profile.forward_flops * share / flops_per_s)


def passes_s(settings: Settings, name: str, modules: Sequence[Module]) -> tuple[float, float]:
    """Seconds of both passes of a synthetic model."""
    if settings.flops_per_s is None:
        return both_passes(settings.forward_s, settings.backward_s)
    flops = sum(module.flops for module in modules)
    if not flops:
        raise ValueError(f"model {name!r} has no FLOPs (fwd_flops), to which a rate would give time")
    if settings.batch is not None:
        flops *= settings.batch / load_batch(table_of(name))
    forward_s = check_seconds(f"model {name!r} at this rate: forward_time", flops / settings.flops_per_s)
    return both_passes(forward_s, settings.backward_s)


def modules_of(name: str) -> list[Module]:
    """The modules of a synthetic model. A profile is none: from that ``simulate`` also takes tied tensors and FLOPs."""
    table = table_of(name)
    modules = load_modules(table)
    if measured_seconds(modules) is not None:
        raise ValueError(f"model {name!r} is a profile: give it as --profile {table}")
    return modules


def table_of(name: str) -> str:
    """What follows ``synthetic:``."""
    kind, _, table = name.partition(":")
    if kind != "synthetic":
        others = "others need a profile (--profile FILE, from dear-mpi train)"
        raise ValueError(f"simulate takes synthetic models, as synthetic:resnet50, not {name!r}: {others}")
    return table


def compute_text(settings: Settings) -> tuple[str, str]:
    """What a row says of the seconds of compute, and in a word or two where they come from."""
    profile, rate, batch, given_s = measured(settings), settings.flops_per_s, settings.batch, settings.backward_s
    if profile is not None:
        scaled = ", scaled to {:.4g} s forward and {:.4g} s backward".format(*profile.passes_s)
        return (f"{profile}{scaled}", "measured, scaled") if is_scaled(settings) else (str(profile), "measured")
    if rate is None:
        return "{:g} s forward and {:g} s backward".format(*both_passes(settings.forward_s, given_s)), "given"
    examples = "the batch of its table" if batch is None else f"batch {batch}"
    text, origin = f"{rate / 1e12:g} TFLOPS and {examples} on each rank", "predicted"
    return (text, origin) if given_s is None else (f"{text}, and {given_s:g} s backward", f"{origin}, backward given")
