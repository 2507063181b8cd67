"""Show a route: its stages in order, and the result of its proof."""

from collections.abc import Iterator

from dear_mpi.training.routes.find import find_route
from dear_mpi.training.routes.proof import Proof, hosts_of, prove
from dear_mpi.training.routes.route import Route, when

KEPT = {
    "equal": "the optimiser's state is the same on all ranks",
    "shard": "each rank keeps the optimiser's state of its shard alone",
    "own": "each rank has an optimiser's state of its own",
}
STARTED = {"out": 'what a schedule starts as "reduce_scatter"', "back": '"all_gather"; "all_reduce" starts both'}


def explain_route(name: str, *, wire: str | None = None) -> None:
    """Print a route, or a wire format's route, and prove it.

    Raises:
        RouteError: the route does not train; all output comes before.
    """
    from rich.table import Table  # optional without a terminal: docs/lecture shows routes in a browser

    from dear_mpi.reporting.terminal import console

    route, screen = find_route(name, wire=wire), console()
    table = Table("way", "leg", "thread", "reads", "writes", title=f"Route {route.name}")
    for way, legs in (("out", route.out), ("back", route.back)):
        for leg in legs:
            table.add_row(way, f"{leg}{when(leg)}", leg.on, ", ".join(leg.reads), ", ".join(leg.writes))
    screen.print(table)
    lines = [f"{way}: {what}" for way, what in STARTED.items()]
    try:
        found = prove(route)
        hosts = hosts_of(route)
        where = f"{len(hosts)} ranks{f' of {len(set(hosts))} hosts' * route.has_levels}"
        lines += ["", f"Proved on {where}, with the engine as early and as late as it can be:"]
        lines += [f"- {line}" for line in told(route, found)]
    finally:
        screen.print("\n".join(lines), markup=False)


def told(route: Route, proof: Proof) -> Iterator[str]:
    yield "each gradient of each rank counts once"
    when = "iteration" if proof.alike else f"round of {route.period} iterations"
    yield f"after each {when} all ranks have the same values"
    yield f"these have {'the bits of full' if proof.exact else 'other bits than those of full'}"
    yield KEPT[proof.state]
    if not proof.summed:
        yield "gradients are not summed before they are used: clip and loss_scale do not apply"
