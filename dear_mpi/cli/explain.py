"""Run ``dear-mpi explain``."""

from pathlib import Path

from dear_mpi.cli.commands import added_files, as_typed, typed_acts
from dear_mpi.cli.files import check_files, try_files, written_by
from dear_mpi.cli.flags import Flags, added, flag
from dear_mpi.cli.run import with_flags
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.reporting.terminal import console
from dear_mpi.see.explain import MOST_RANKS, explain_algorithm
from dear_mpi.see.route import explain_route
from dear_mpi.training.declared import listed, parsed
from dear_mpi.training.options import NAMES
from dear_mpi.training.routes.find import EXAMPLES, FULL, ROUTES

MOST_PIECES = 256  # which take some seconds for 64 ranks
OF_ROUTES = ("route", "wire")
RATES = "Bandwidths inside and between hosts, for themis: 100gbit/10gbit, or FILE.json."
PICTURE = "Draw the steps into FILE.png, FILE.pdf or FILE.svg, or into FILE.gif: a frame for each step."
OWN = (
    flag("route", str | None, f"Route to show in place of an algorithm: {', '.join(ROUTES)}, or FILE.py:NAME.")
    | flag(
        "wire",
        str | None,
        f"Codes whose route to show: {', '.join(EXAMPLES.values())}, int4:between, or one that an extra publishes.",
    )
    | flag("algorithm", str, f"Algorithm to show: {NAMES}, or FILE.py:FUNCTION; several with commas.", "ring")
    | flag("collective", str, f"Collective to show: {', '.join(COLLECTIVES)}.", "all_reduce")
    | flag("ranks", int, f"Number of ranks, at most {MOST_RANKS}.", 4, min=1)
    | flag("hosts", int, "Number of hosts that the ranks are spread over, at most as many as ranks.", 1, min=1)
    | flag("rates", str | None, RATES)
    | flag("pieces", int, "Number of segments in the buffer, for double_tree and themis.", 1, min=1, max=MOST_PIECES)
    | flag("check", bool, "Prove the algorithm for every number of ranks up to --ranks.", False)
    | flag("picture", Path | None, PICTURE, metavar="FILE")
)


@with_flags(OWN | added("explain"), alone="explain")
def explain(flags: Flags) -> None:
    """Example: dear-mpi explain --algorithm ring --ranks 4 --check"""
    others = [f"--{name}" for name in flags if name not in OF_ROUTES]
    if len(others) < len(flags):
        if others:
            given = ", ".join(f"--{name}" for name in OF_ROUTES if name in flags)
            raise ValueError(f"{given} shows a route, which is proved anyway: leave out {', '.join(others)}")
        explain_route(flags.get("route") or FULL.name, wire=flags.get("wire"))
        return
    written = written_by(flags, picture="--picture", **added_files("explain"))
    try_files(written)
    how = {name: flags.get(name, each.default) for name, each in OWN.items() if name not in OF_ROUTES}
    name = how.pop("algorithm")
    algorithms = listed("--algorithm", name) if "," in name else (name,)
    check_files({"--algorithm": algorithms}, written)
    if len(algorithms) > 1 and how["picture"] is not None:
        raise ValueError(f"--picture draws one algorithm, not {len(algorithms)}: --html shows two side by side")
    if how["rates"] is not None:
        from dear_mpi.simulate.network import read_rates  # seldom needed

        how["rates"] = parsed("--rates", read_rates, how["rates"])
    what = how.pop("collective"), how.pop("ranks")
    for added_flag, act in typed_acts("explain", flags).items():  # first: also for a wrong algorithm
        layout = {name: how[name] for name in ("hosts", "rates", "pieces")}
        act(as_typed(added_flag), flags[added_flag], algorithms, *what, **layout)
        console().print(f"The page is {flags[added_flag]}", markup=False, soft_wrap=True)
    for algorithm in algorithms:
        try:
            explain_algorithm(algorithm, *what, **how)
        except ProgramError as error:
            if len(algorithms) == 1:
                raise
            raise ValueError(f"algorithm {algorithm!r} of {len(algorithms)}: {error}") from None
