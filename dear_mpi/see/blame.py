"""The table of blame, from the data of ``--json``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

ABOUT = (
    "now, without: of an iteration, each cause without those above it too; means without the fifth of iterations at "
    "either end; parts: means over ranks and iterations, of the run, of its replay, and of that without the causes"
)


def show_blame(screen: Console, found: Mapping[str, Any]) -> None:
    if "refused" in found:
        screen.print(f"blame: {found['refused']}", markup=False, soft_wrap=True)
        return
    screen.print("\n".join(found["said"]), markup=False)
    suspects = ", ".join(f"{count} {kind}s" for kind, count in found["suspects"].items() if count)
    title = f"blame: {found['iterations']} iterations on {found['ranks']} ranks, replayed {found['off']:+.1%}"
    screen.print(title, markup=False)
    if found["causes"]:
        screen.print(table(("cause", "seen in", "now (ms)", "without", "shorter by"), causes(found)))
    screen.print(table(("part (ms)", "measured", "replayed", "without"), parts(found)))
    screen.print(f"{ABOUT}; suspects: {suspects}; usual for a layer: {found['reference']}", markup=False)


def causes(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for each in found["causes"]:
        times = (f"{each[name] * 1e3:.1f}" for name in ("now_s", "without_s"))
        yield (
            f"{each['kind']} {each['name']}",
            f"{each['seen']} of {found['iterations']}",
            *times,
            f"{each['share']:.1%}",
        )


def parts(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for part, seconds in found["parts_s"].items():
        yield part, *(f"{each * 1e3:.2f}" for each in seconds.values())
    totals = (
        sum(each[name] for each in found["parts_s"].values()) for name in ("measured_s", "replayed_s", "without_s")
    )
    yield "iteration", *(f"{total * 1e3:.2f}" for total in totals)


def table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> Table:
    found = Table(box=SIMPLE_HEAD, show_edge=False)
    for head in heads:
        found.add_column(head, justify="left" if head == heads[0] else "right")
    for row in rows:
        found.add_row(*row)
    return found
