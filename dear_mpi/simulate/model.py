"""What is simulated of a model: where its parameters lie, and how long each layer takes; it has no arrays."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.paper_models import Module, shares_of
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.line.layout import Layout, Shape
from dear_mpi.training.profiles.profile import Profile

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
    """

    name: str
    layout: Layout
    names: tuple[str, ...]
    wire: str
    costs: Costs
    value_size: int = DTYPES["fp32"].itemsize

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
) -> Model:
    """A model of a table, with parameters of fp32, whose layers share the seconds in proportion to their FLOPs.

    Args:
        modules: see ``load_modules``.
        forward_s, backward_s: of all layers, in each part of a batch.

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
    forward, backward = [share * forward_s for share in ahead], [share * backward_s for share in back]
    return Model(
        name=name,
        layout=layout_of(name, uses, wire=wire, dtype="fp32", ranks=ranks),
        names=tuple(module.name for module in modules),
        wire=wire,
        costs=Costs(forward_s=forward, backward_s=backward, parts=parts),
    )


def measured_model(profile: Profile, *, ranks: int, wire: str, parts: int | None = None) -> Model:
    """The model that was profiled, on any number of ranks: each computes what one of the profiled ranks did.

    Args:
        parts: into how many the batch of an iteration is split; as in the profile, if it is not given.

    Raises:
        ValueError: as for ``synthetic_model``.
    """
    uses = [[(tensor.key, tensor.shape) for tensor in use.tensors] for use in profile.uses]
    return Model(
        name=profile.model,
        layout=layout_of(profile.model, uses, wire=wire, dtype=profile.dtype, ranks=ranks),
        names=tuple(use.name for use in profile.uses),
        wire=wire,
        costs=profile.costs(parts),
        value_size=DTYPES[profile.dtype].itemsize,
    )


def layout_of(
    name: str, uses: Iterable[Sequence[tuple[Hashable, Shape]]], *, wire: str, dtype: str, ranks: int
) -> Layout:
    itemsize = lookup("wire", wire, DTYPES).itemsize
    layout = Layout.of(uses, itemsize=itemsize, ranks=ranks, value_size=DTYPES[dtype].itemsize)
    if sum(layout.owned) > MOST_ELEMENTS:
        raise ValueError(f"model {name!r} has {sum(layout.owned)} parameters: simulate takes at most {MOST_ELEMENTS}")
    return layout
