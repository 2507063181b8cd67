"""What is simulated of a model: where its parameters lie, and how long each layer takes; it has no arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dear_mpi.models.paper_models import load_modules
from dear_mpi.training.line.layout import Layout

__all__ = ["Model", "synthetic_model"]


@dataclass(frozen=True)
class Model:
    """A model as layers that take time.

    Attributes:
        layout: of its parameters, for this number of ranks.
        forward_s, backward_s: seconds of each use of a layer, in the order of the forward pass.
        itemsize: bytes of an element on the wire.
        names: of the layers.
    """

    name: str
    layout: Layout
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    itemsize: int
    names: tuple[str, ...]

    @property
    def compute_s(self) -> float:
        """Forward and backward of one iteration."""
        return sum(self.forward_s) + sum(self.backward_s)


def synthetic_model(name: str, *, ranks: int, forward_s: float, backward_s: float, itemsize: int = 4) -> Model:
    """One of the paper's models, or a table of a user, whose layers share the seconds in proportion to their FLOPs.

    Args:
        name: as for ``load_modules``: ``resnet50``, or ``FILE.json``.

    Raises:
        ValueError: there is no such model.

    >>> model = synthetic_model("resnet50", ranks=64, forward_s=0.1, backward_s=0.2)
    >>> len(model.names), model.layout.count
    (107, 25559040)
    """
    modules = load_modules(name)
    uses = [
        [(f"{number}.{place}", (count,)) for place, count in enumerate(module.counts)]
        for number, module in enumerate(modules)
    ]
    shares = shares_of([module.flops for module in modules])
    return Model(
        name=f"synthetic:{name}",
        layout=Layout.of(uses, itemsize=itemsize, ranks=ranks),
        forward_s=tuple(share * forward_s for share in shares),
        backward_s=tuple(share * backward_s for share in shares),
        itemsize=itemsize,
        names=tuple(module.name for module in modules),
    )


def shares_of(flops: Sequence[float]) -> list[float]:
    """The share of each in the sum; equal ones if there is nothing to share."""
    total = sum(flops)
    return [each / total if total else 1 / len(flops) for each in flops]
