"""Write the page of schedules: lanes on one time axis, exposed time, bounds, and optional sliders."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from dear_mpi.contrib.look import origins, title_of
from dear_mpi.contrib.pages.lanes import Names, kinds, lanes_of, shown_ranks
from dear_mpi.contrib.pages.whole import Kind, whole, write_page
from dear_mpi.training.events.spans import COMPUTE, WIRE, Timeline

PAGE = Kind(
    scripts=("ticks.js", "lanes.js", "schedules.js"), looks=("chart.css", "tables.css", "lanes.css", "schedules.css")
)
FIGURES = {"iteration": "iteration_s", "compute": "compute_s", "exposed": "exposed_comm_s", "bound": "bound_s"}
VERDICT = "verdict"
Rows: TypeAlias = Sequence[Mapping[str, Any]]
"""With the values of ``FIGURES`` as keys, in the order of a timeline's runs; and with a verdict where there is one."""
Point: TypeAlias = tuple[Sequence[int], Timeline, Rows]
"""What is predicted where each slider is in some place."""


def write_schedules(flag: str, path: Path, timeline: Timeline, rows: Rows, **grid: Any) -> None:
    """Write the page of a timeline. Raises ValueError, which begins with ``flag``, if that fails.

    ``grid``: see ``schedules_data``.
    """
    data = schedules_data(timeline, rows, **grid)
    write_page(flag, path, whole(PAGE, data["title"], data))


def schedules_data(
    timeline: Timeline, rows: Rows, *, sliders: Sequence[Mapping[str, Any]] = (), points: Iterable[Point] = ()
) -> dict[str, Any]:
    """Args:
    sliders: for each, its ``name``, the ``labels`` of its positions, and the initial position ``at``.
    points: predictions at other positions.
    """
    names = Names()
    states = {",".join(str(slider["at"]) for slider in sliders): state_of(timeline, rows, names)}
    for places, other, found in points:
        states[",".join(map(str, places))] = state_of(other, found, names)
    return {
        "title": title_of(timeline),
        "told": list(origins(timeline, shown_ranks(timeline))),
        "live": timeline.live,
        "lanes": [COMPUTE, WIRE],
        "kinds": kinds(),
        "sliders": list(sliders),
        "states": states,
        "names": names.rows(),
    }


def state_of(timeline: Timeline, rows: Rows, names: Names) -> dict[str, Any]:
    """Return one view: the lanes of each run, and its figures in seconds."""
    runs = lanes_of(timeline, names)
    figures = [{name: row[key] for name, key in FIGURES.items()} | {VERDICT: row.get(VERDICT)} for row in rows]
    return {"runs": runs, "figures": figures[: len(runs)]}
