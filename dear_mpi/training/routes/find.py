"""Look up routes and wires by name, in users' files and packages."""

from dear_mpi.collectives.program.user_file import is_in_file, load, source_of
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.training.routes.route import Route
from dear_mpi.training.routes.stages import MAIN, Pack, Stage, Unpack, Update, all_gather, reduce_scatter

AUTO = "auto"
UPDATES = ("full", "sharded", AUTO)
MINE = "my_route"
SUMS_BACK = all_gather("gradients"), Update(on=MAIN), Unpack()
VALUES_BACK = Update(shard=True), all_gather("values"), Unpack()
FULL = Route("full", out=(Pack(), reduce_scatter("gradients")), back=SUMS_BACK)
# Each rank keeps only its shard's optimiser state. Values travel in their own type. Source:
# Rajbhandari et al., ZeRO, SC 2020, section 5.1; Xu et al., arXiv 2004.13336.
SHARDED = Route("sharded", out=(Pack(), reduce_scatter("gradients")), back=VALUES_BACK)
ROUTES = {route.name: route for route in (FULL, SHARDED)}
CODES = ("int8",)  # of core
NAMES = (*DTYPES, *CODES)


def is_code(wire: str | None) -> bool:
    return wire is not None and wire not in DTYPES


def find_route(name: str, *, wire: str | None = None, halves: bool = False) -> Route:
    """Find a route in ``ROUTES``, or in a user's file.

    Args:
        wire: the type or codes of travelling gradients; codes bring their own route.
        halves: ``sharded`` gives the bits of ``full``, so ``auto`` takes it: several ranks, gradients in the
            parameters' type, and an algorithm with both halves of an all-reduce.

    Raises:
        ValueError: no such route, no ``Route``, or codes with a user's route.
    """
    if wire is not None and is_code(wire):
        if name not in UPDATES:
            raise ValueError(f"wire {wire!r} sets the route: leave out route {name!r}, or the wire")
        from dear_mpi.training.routes.wires import find_code  # few routes compress

        sharded, code = name == SHARDED.name, find_code(wire)
        title = f"{SHARDED.name if sharded else FULL.name} over {wire}"
        return code.route(title, code.wire, sharded=sharded, **code.how)
    if name == AUTO:
        return SHARDED if halves else FULL
    if not is_in_file(name):
        return lookup("route", name, ROUTES)
    found = load(source_of(name, "route", MINE))
    if not isinstance(found, Route):
        raise ValueError(f"route {name!r} must be a Route of dear_mpi.training.routes, not {found!r:.99}")
    for what, stages in (("out", found.out), ("back", found.back)):
        if not isinstance(stages, tuple) or not all(isinstance(stage, Stage) for stage in stages):
            raise ValueError(f"route {name!r} must have a tuple of stages in {what}, not {stages!r:.99}")
    return found
