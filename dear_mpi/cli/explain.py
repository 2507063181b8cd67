"""Run ``dear-mpi explain``."""

from dear_mpi.cli.commands import typed_acts
from dear_mpi.cli.flags import Flags, check_files, flag, try_files, written_by
from dear_mpi.cli.run import with_flags
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.reporting.declared import BETWEEN_ALGORITHMS, listed, parsed
from dear_mpi.reporting.terminal import console
from dear_mpi.see.explain import MOST_RANKS, Asked, explain_algorithm, explain_route
from dear_mpi.training.options import NAMES
from dear_mpi.training.routes.find import FULL, OURS, ROUTES

MOST_PIECES = 256  # some seconds for 64 ranks
OF_ROUTES = ("route", "wire")
RATES = "Bandwidths inside and between hosts, for themis: 100gbit/10gbit, or FILE.json."
OWN = (
    flag("route", str | None, f"Route to show in place of an algorithm: {', '.join(ROUTES)}, or FILE.py:NAME.")
    | flag(
        "wire",
        str | None,
        f"Codes whose route to show: {', '.join(OURS)}, or of an extra, such as int4:between.",
    )
    | flag("algorithm", str, f"Algorithm to show: {NAMES}, or FILE.py:FUNCTION; several with commas.", "ring")
    | flag("collective", str, f"Collective to show: {', '.join(COLLECTIVES)}.", "all_reduce")
    | flag("ranks", int, f"Number of ranks, at most {MOST_RANKS}.", 4, min=1)
    | flag("hosts", int, "Number of hosts that the ranks are spread over, at most as many as ranks.", 1, min=1)
    | flag("rates", str | None, RATES)
    | flag("pieces", int, "Number of segments in the buffer, for double_tree and themis.", 1, min=1, max=MOST_PIECES)
    | flag("check", bool, "Prove the algorithm for every number of ranks up to --ranks.", False)
)


@with_flags(OWN, alone="explain")
def explain(flags: Flags) -> None:
    """Example: dear-mpi explain --algorithm ring --ranks 4 --check"""
    others = [f"--{name}" for name in flags if name not in OF_ROUTES]
    if len(others) < len(flags):
        if others:
            given = ", ".join(f"--{name}" for name in OF_ROUTES if name in flags)
            raise ValueError(f"{given} shows a route, which is proved anyway: leave out {', '.join(others)}")
        explain_route(flags.get("route") or FULL.name, wire=flags.get("wire"))
        return
    written, acts = written_by(flags), typed_acts("explain", flags, OWN)
    try_files(written)
    how = {name: flags.get(name, each.default) for name, each in OWN.items() if name not in OF_ROUTES}
    typed = how.pop("algorithm")
    algorithms = listed("--algorithm", typed, BETWEEN_ALGORITHMS) if "," in typed else (typed,)
    check_files({"--algorithm": algorithms}, written)
    if how["rates"] is not None:
        from dear_mpi.simulate.network import read_rates

        how["rates"] = parsed("--rates", read_rates, how["rates"])
    check = how.pop("check")
    asked = Asked(tuple(algorithms), **how)
    for name, act in acts.items():  # first: also for a wrong algorithm
        act(asked)
        console().print(f"Written to {flags[name]}", soft_wrap=True)
    for algorithm in algorithms:
        try:
            explain_algorithm(algorithm, asked, check=check)
        except ProgramError as error:
            if len(algorithms) == 1:
                raise
            raise ValueError(f"algorithm {algorithm!r} of {len(algorithms)}: {error}") from None
