"""What may be chosen of the way of gradients, whether something is trained or simulated."""

from __future__ import annotations

from dataclasses import dataclass

from dear_mpi.collectives.algorithms.registry import ALGORITHMS
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.training.declared import Declared, option
from dear_mpi.training.fabric.loss_scale import is_judged
from dear_mpi.training.routes.find import ROUTES, find_route, route_name
from dear_mpi.training.routes.route import Route

TABLES = "resnet50, densenet201, inceptionv4, bert_base, bert_large or FILE.json"
NAMES = ", ".join(ALGORITHMS)
FUSION_BY_SIZE = (
    "How layers are fused into buckets. none: a bucket for each layer; layers:4: one for every 4 layers; buckets:8: 8 "
    "of similar size; 25MB: layers up to this size; tensors: one for each tensor; cut:4MB: exactly this size, also "
    "inside a tensor"
)
FUSION_AS_GIVEN = (
    "ddp, horovod, mgwfbp: as the source of that schedule does; own: as the source of each schedule does; at:N,N: at "
    "these elements; FILE.py:FUNCTION: as a function of a file says"
)


@dataclass(frozen=True, kw_only=True)
class Exchange(Declared):
    """What an iteration sends of gradients, and how often."""

    wire: str | None = option(
        f"Type in which gradients travel: {', '.join(DTYPES)}.",
        None,
        shown="the type of the parameters",
        allowed=DTYPES,
    )
    clip: float | None = option(
        "Largest norm of all gradients together; above it, all are scaled by CLIP / norm (torch: norm + 1e-6).",
        None,
        shown="no limit",
        reported=True,
        decides=True,
    )
    loss_scale: str = option(
        "none, or dynamic: gradients are scaled up while they travel, and an iteration that overflows is skipped.",
        "none",
        reported=True,
        decides=True,
    )
    update: str | None = option(
        "full: each rank updates all parameters. sharded: each rank updates one part of the parameters, and keeps the "
        "optimiser's state for that part only. auto: sharded where that gives the same bits, else full.",
        None,
        shown="full",
    )
    route: str | None = option(
        f"What gradients go through: {', '.join(ROUTES)}, or FILE.py:NAME. In place of --update.",
        None,
        shown="as --update says",
        may_be_file=True,
    )

    def check(self) -> None:
        super().check()
        is_judged(self.clip, self.loss_scale)
        route_name(self.update, self.route)

    @property
    def judged(self) -> bool:
        """Whether all gradients are looked at before any of them is used."""
        return is_judged(self.clip, self.loss_scale)

    def find_route(self, *, halves: bool = False) -> Route:
        """The route that was chosen; ``halves``: see ``find_route`` in ``routes/find.py``.

        Raises:
            ValueError: there is none of this name.
        """
        return find_route(route_name(self.update, self.route), halves=halves)
