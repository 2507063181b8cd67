"""The command ``dear-mpi explain``."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from dear_mpi.cli.files import check_files, try_files
from dear_mpi.cli.flags import typed
from dear_mpi.cli.run import check_alone, complaining
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.see.explain import MOST_RANKS, explain_algorithm
from dear_mpi.see.route import explain_route
from dear_mpi.simulate.machine import read_rates
from dear_mpi.training.declared import parsed
from dear_mpi.training.options import NAMES
from dear_mpi.training.routes.find import FULL, ROUTES
from dear_mpi.training.wires.find import EXAMPLES


def explain(
    context: typer.Context,
    route: Annotated[
        str | None, Option(help=f"Route to show in place of an algorithm: {', '.join(ROUTES)}, or FILE.py:NAME.")
    ] = None,
    wire: Annotated[str | None, Option(help=f"Codes whose route to show: {', '.join(EXAMPLES.values())}.")] = None,
    algorithm: Annotated[str, Option(help=f"Algorithm to show: {NAMES}, or FILE.py:FUNCTION.")] = "ring",
    collective: Annotated[str, Option(help=f"Collective to show: {', '.join(COLLECTIVES)}.")] = "all_reduce",
    ranks: Annotated[int, Option(min=1, help=f"Number of ranks, at most {MOST_RANKS}.")] = 4,
    hosts: Annotated[int, Option(min=1, help="Number of hosts that the ranks are spread over.")] = 1,
    rates: Annotated[
        str | None, Option(help="Bandwidths inside and between hosts, for themis: 100gbit/10gbit, or FILE.json.")
    ] = None,
    pieces: Annotated[int, Option(min=1, help="Number of segments in the buffer, for double_tree and themis.")] = 1,
    check: Annotated[
        bool, Option("--check", help="Prove the algorithm for every number of ranks up to --ranks.")
    ] = False,
    picture: Annotated[
        Path | None, Option(metavar="FILE", help="Draw the steps into FILE.png, FILE.pdf or FILE.svg.")
    ] = None,
) -> None:
    """Show a collective algorithm step by step: who sends which chunk to whom, and what each rank holds; or a route.

    Example: dear-mpi explain --algorithm ring --ranks 4 --check
    """
    with complaining(mpi=False):
        check_alone("explain", 1)
        if route is not None or wire is not None:
            others = [f"--{name}" for name in typed(context) if name not in ("route", "wire")]
            if others:
                raise ValueError(
                    f"--route goes with --wire alone, not with {', '.join(others)}: a route is proved anyway"
                )
            explain_route(route or FULL.name, wire=wire)
            return
        if picture is not None:
            try_files([("--picture", picture)])
            check_files({}, [("--picture", picture)])
        given = None if rates is None else parsed("--rates", read_rates, rates)
        explain_algorithm(
            algorithm, collective, ranks, hosts=hosts, rates=given, pieces=pieces, check=check, picture=picture
        )
