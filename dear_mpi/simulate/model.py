"""What is simulated of a model: where its parameters lie, and how long each layer takes; it has no arrays."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.paper_models import Module, shares_of
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.line.layout import Layout, Shape
from dear_mpi.training.profiles.profile import Profile

VALUE_SIZE = DTYPES["fp32"].itemsize
MOST_ELEMENTS = 10**13  # bytes then stay far below what an int64 counts


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as layers that take time.

    Attributes:
        layout: of its parameters, for this number of ranks.
        forward_s, backward_s: seconds of each use of a layer, in the order of the forward pass; of each part, where
            the batch passes in several.
        wire: the type of gradients on their way.
        value_size: bytes of an element of a parameter.
        names: of the layers.
        parts: of a batch; gradients are sent after the last.
        update_s: seconds of the optimiser for each element.
        rest_s: seconds of an iteration between forward and backward, for what is no layer.
    """

    name: str
    layout: Layout
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    wire: str
    names: tuple[str, ...]
    value_size: int = VALUE_SIZE
    parts: int = 1
    update_s: float = 0.0
    rest_s: float = 0.0

    @property
    def params(self) -> int:
        """How many elements are trained."""
        return sum(self.layout.owned)

    def costs(self, **further: Any) -> Costs:
        """What its layers and updates take, and further costs."""
        own = {name: getattr(self, name) for name in ("forward_s", "backward_s", "parts", "update_s", "rest_s")}
        return Costs(**own, **further)


def synthetic_model(
    name: str,
    modules: Sequence[Module],
    *,
    ranks: int,
    forward_s: float,
    backward_s: float,
    wire: str = "fp32",
    parts: int = 1,
) -> Model:
    """A model of a table, whose layers share the seconds in proportion to their FLOPs.

    Args:
        modules: see ``load_modules``.
        forward_s, backward_s: of all layers, in each part of a batch.
        wire: the type of gradients on their way; parameters are of fp32.
        parts: into how many a batch is split.

    Raises:
        ValueError: there is no such type, or there are too many elements.

    >>> from dear_mpi.models.paper_models import load_modules
    >>> modules = load_modules("resnet50")
    >>> model = synthetic_model("synthetic:resnet50", modules, ranks=64, forward_s=0.1, backward_s=0.2)
    >>> len(model.names), model.layout.count
    (107, 25559040)
    """
    uses = [
        [(f"{number}.{place}", (count,)) for place, count in enumerate(module.counts)]
        for number, module in enumerate(modules)
    ]
    ahead, back = shares_of(modules)
    return Model(
        name=name,
        layout=layout_of(name, uses, wire=wire, value_size=VALUE_SIZE, ranks=ranks),
        forward_s=tuple(share * forward_s for share in ahead),
        backward_s=tuple(share * backward_s for share in back),
        wire=wire,
        value_size=VALUE_SIZE,
        names=tuple(module.name for module in modules),
        parts=parts,
    )


def layout_of(
    name: str, uses: Iterable[Sequence[tuple[Hashable, Shape]]], *, wire: str, value_size: int, ranks: int
) -> Layout:
    """The line of a model, for ``Layout.of``.

    Raises:
        ValueError: there is no such type, or it would have too many elements.
    """
    itemsize = lookup("wire", wire, DTYPES).itemsize
    layout = Layout.of(uses, itemsize=itemsize, ranks=ranks, value_size=value_size)
    if sum(layout.owned) > MOST_ELEMENTS:
        raise ValueError(f"model {name!r} has {sum(layout.owned)} parameters: simulate takes at most {MOST_ELEMENTS}")
    return layout


def measured_model(profile: Profile, *, ranks: int, wire: str, parts: int | None = None) -> Model:
    """The model that was profiled, on any number of ranks: each computes what one of the profiled ranks did.

    Args:
        parts: into how many the batch of an iteration is split; as in the profile, if it is not given.

    Raises:
        ValueError: there is no such type, or there are too many elements.
    """
    parts, value_size = parts or profile.accumulate, DTYPES[profile.dtype].itemsize
    uses = [[(tensor.key, tensor.shape) for tensor in use.tensors] for use in profile.uses]
    return Model(
        name=profile.model,
        layout=layout_of(profile.model, uses, wire=wire, value_size=value_size, ranks=ranks),
        forward_s=tuple(use.forward_s / parts for use in profile.uses),
        backward_s=tuple(use.backward_s / parts for use in profile.uses),
        wire=wire,
        value_size=value_size,
        names=tuple(use.name for use in profile.uses),
        parts=parts,
        update_s=profile.update_s_per_element,
        rest_s=profile.rest_s,
    )
