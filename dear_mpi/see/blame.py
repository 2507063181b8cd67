"""The table of blame, from the data of ``--json``."""

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dear_mpi.reporting.terminal import table
from dear_mpi.reporting.units import plural

LOOK: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False}
MEANS = "Times are means without the fifth of iterations at either end; each cause counts without those above it."


def show_blame(screen: Console, found: Mapping[str, Any]) -> None:
    if "refused" in found:
        screen.print(f"blame: {found['refused']}", markup=False, soft_wrap=True)
        return
    screen.print("\n".join(found["said"]), markup=False)
    many, ranks = plural(found["iterations"], "iteration"), plural(found["ranks"], "rank")
    screen.print(f"blame: {many} on {ranks}, replayed {round(found['off'], 3) + 0.0:+.1%}", markup=False)
    if found["causes"]:
        screen.print(causes(found))
    screen.print(parts(found))
    suspects = ", ".join(plural(count, kind) for kind, count in found["suspects"].items() if count)
    screen.print(f"{MEANS}\nSuspects: {suspects}. Usual for a layer: {found['reference']}.", markup=False)


def causes(found: Mapping[str, Any]) -> Table:
    columns = {
        "cause": lambda each: f"{each['kind']} {each['name']}",
        "seen in": lambda each: f"{each['seen']} of {found['iterations']}",
        "now (ms)": lambda each: f"{each['now_s'] * 1e3:.1f}",
        "without": lambda each: f"{each['without_s'] * 1e3:.1f}",
        "shorter by": lambda each: f"{each['share']:.1%}",
    }
    return table([found["causes"]], columns, left=("cause",), **LOOK)


def parts(found: Mapping[str, Any]) -> Table:
    """Of an iteration, and their sums."""
    rows, names = list(found["parts_s"].items()), ("measured", "replayed", "without")
    rows.append(("iteration", {f"{name}_s": sum(part[f"{name}_s"] for _, part in rows) for name in names}))
    columns: dict[str, Callable[[Any], str]] = {"part (ms)": itemgetter(0)}
    columns |= {name: partial(milliseconds, f"{name}_s") for name in names}
    return table([rows], columns, left=("part (ms)",), **LOOK)


def milliseconds(name: str, row: tuple[str, Mapping[str, float]]) -> str:
    return f"{row[1][name] * 1e3:.2f}"
