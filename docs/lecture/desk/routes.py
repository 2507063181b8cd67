"""A route of a cell: its stages on both ways, its proof, and the stage that breaks it."""

import re
from typing import Any

from dear_mpi.see.explain import told
from dear_mpi.training.routes.find import find_route
from dear_mpi.training.routes.proof import Proof, RouteError, prove
from dear_mpi.training.routes.route import Route, when


def stages_of(route: Route, broken: int | None = None) -> list[dict[str, Any]]:
    """List the stages in order: way, thread, reads and writes, and whether it is the broken one."""
    ways = [("out", stage) for stage in route.out] + [("back", stage) for stage in route.back]
    return [
        {
            "way": way,
            "said": f"{stage}{when(stage)}",
            "thread": stage.on,
            "reads": list(stage.reads),
            "writes": list(stage.writes),
            "broken": number == broken,
        }
        for number, (way, stage) in enumerate(ways)
    ]


def proved(name: str) -> tuple[Route, Proof | None, RouteError | None]:
    """A route with its proof, or with what is wrong."""
    route = find_route(name)
    try:
        return route, prove(route), None
    except RouteError as error:
        return route, None, error


def broken_stage(error: RouteError | None) -> int | None:
    """The number of the stage that an error names.

    >>> broken_stage(RouteError("route 'wrong': stage 2 (update all), at buffer 'gradients' of bucket 0, reads 1"))
    2
    """
    found = re.search(r": stage (\d+) ", str(error))
    return int(found[1]) if found else None


def facts_of(route: Route, proof: Proof) -> list[str]:
    return list(told(route, proof))
