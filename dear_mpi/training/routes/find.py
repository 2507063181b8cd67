"""Our routes by name, and a user's from a file."""

from dear_mpi.collectives.program.user_file import is_in_file, load, source_of
from dear_mpi.kernels.lookup import lookup
from dear_mpi.training.routes.legs import MAIN, Pack, Unpack, Update, all_gather, reduce_scatter
from dear_mpi.training.routes.route import Route

AUTO = "auto"
UPDATES = ("full", "sharded", AUTO)
MINE = "my_route"  # what messages call a user's
FULL = Route(
    "full",
    out=(Pack(), reduce_scatter("gradients")),
    back=(all_gather("gradients"), Update(on=MAIN), Unpack()),
)
# Each rank updates its shard, and keeps the optimiser's state of that alone. Values travel in their own type.
# Source: Rajbhandari et al., ZeRO, SC 2020, section 5.1; Xu et al., arXiv 2004.13336.
SHARDED = Route(
    "sharded",
    out=(Pack(), reduce_scatter("gradients")),
    back=(Update(shard=True), all_gather("values"), Unpack()),
)
ROUTES = {route.name: route for route in (FULL, SHARDED)}


def find_route(name: str, *, halves: bool = False) -> Route:
    """The route of a name in ``ROUTES``, or of a user's file.

    Args:
        halves: whether ``sharded`` has the bits of ``full`` and can be carried out: then ``auto`` takes it.

    Raises:
        ValueError: there is none, or it is no ``Route``.
    """
    if name == AUTO:
        return SHARDED if halves else FULL
    if not is_in_file(name):
        return lookup("route", name, ROUTES)
    found = load(source_of(name, "route", MINE))
    if not isinstance(found, Route):
        raise ValueError(f"route {name!r} must be a Route of dear_mpi.training.routes, not {found!r:.99}")
    return found
