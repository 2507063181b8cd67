"""A route of a cell: its legs on both ways, its proof, and the leg that breaks it."""

import re
from typing import Any

from dear_mpi.see.proof import told
from dear_mpi.training.routes.find import find_route
from dear_mpi.training.routes.proof import Proof, RouteError, prove
from dear_mpi.training.routes.route import Route, when


def legs_of(route: Route, broken: int | None = None) -> list[dict[str, Any]]:
    """Every leg, in its order: its way, its thread, what it reads and writes, and whether it is the one that breaks."""
    ways = [("out", leg) for leg in route.out] + [("back", leg) for leg in route.back]
    return [
        {
            "way": way,
            "said": f"{leg}{when(leg)}",
            "thread": leg.on,
            "reads": list(leg.reads),
            "writes": list(leg.writes),
            "broken": number == broken,
        }
        for number, (way, leg) in enumerate(ways)
    ]


def proved(name: str) -> tuple[Route, Proof | None, RouteError | None]:
    """A route with its proof, or with what is wrong."""
    route = find_route(name)
    try:
        return route, prove(route), None
    except RouteError as error:
        return route, None, error


def broken_leg(error: RouteError | None) -> int | None:
    """The number of the leg that an error names.

    >>> broken_leg(RouteError("route 'wrong': leg 2 (update all), at line 'gradients' of bucket 0, reads shard 1"))
    2
    """
    found = re.search(r": leg (\d+) ", str(error))
    return int(found[1]) if found else None


def facts_of(route: Route, proof: Proof) -> list[str]:
    return list(told(route, proof))
