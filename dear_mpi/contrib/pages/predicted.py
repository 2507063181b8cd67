"""Write the lanes of ``simulate --html``, with sliders for other networks and buckets.

Each position is a separate prediction, with the bandwidth and latency of all links times a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from dear_mpi.collectives.program.cost import Network
from dear_mpi.collectives.program.hosts import format_rate
from dear_mpi.contrib.look import MOST_RUNS
from dear_mpi.contrib.pages.schedules import write_schedules
from dear_mpi.reporting.terminal import bar, note
from dear_mpi.simulate.sweep import FUSIONS, Simulated
from dear_mpi.simulate.table import timeline_of

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
LATENCIES = (0.25, 1.0, 4.0)
LARGE_BYTES = 10_000_000  # larger pages are slow


@dataclass(frozen=True)
class Grid:
    rows: Sequence[Simulated]

    @cached_property
    def fusions(self) -> tuple[str, ...]:
        """The given fusion, and others unless the user asked for several: each row has one."""
        given = tuple(dict.fromkeys(each.row["fusion"] for each in self.rows))
        return () if len(given) > 1 else tuple(dict.fromkeys((*FUSIONS, *given)))

    @property
    def sliders(self) -> list[dict[str, Any]]:
        """Return each slider's name, labels, and the position of the given rows."""
        network = self.rows[0].scenario.machine.network
        found = [
            {
                "name": "Bandwidth",
                "labels": [bandwidth(network, each) for each in BANDWIDTHS],
                "at": BANDWIDTHS.index(1),
            },
            {"name": "Latency", "labels": [latency(network, each) for each in LATENCIES], "at": LATENCIES.index(1)},
        ]
        if self.fusions:
            at = self.fusions.index(self.rows[0].row["fusion"])
            found.append({"name": "Buckets", "labels": list(self.fusions), "at": at})
        return found

    @property
    def places(self) -> list[tuple[int, ...]]:
        """Return all slider positions except the given one."""
        given = tuple(slider["at"] for slider in self.sliders)
        every = product(*(range(len(slider["labels"])) for slider in self.sliders))
        return [place for place in every if place != given]

    def points(self, progress: Callable[[str], object]) -> Iterator[tuple[Sequence[int], list[Simulated]]]:
        """Yield the rows at each position that all rows support; ``progress`` is called after each."""
        for place in self.places:
            with suppress(ValueError):  # such as a refused fusion
                rows = [self.at(each, *place) for each in self.rows]
                yield place, rows
            progress("what sliders show")

    def at(self, each: Simulated, bandwidth: int, latency: int, fusion: int = 0) -> Simulated:
        """Return a row at a position. Raises ValueError if it is impossible there."""
        scenario = each.scenario.rewired(beta=1 / BANDWIDTHS[bandwidth], alpha=LATENCIES[latency])
        name, policy = each.row["schedule"], self.fusions[fusion] if self.fusions else each.row["fusion"]
        kind = each.scenario.settings.kinds[name]
        scenario.check(name, kind, policy)
        found = scenario.predict(name, kind, policy, traced=True)
        return replace(each, row=scenario.row(policy, found, found.iteration_s), scenario=scenario, prediction=found)


def bandwidth(network: Network, factor: float) -> str:
    """
    >>> bandwidth(Network(beta=8e-10), 0.5), bandwidth(Network(), 0.5)
    ('5 Gbit/s', '0.5 times')
    """
    plain = network.beta and network.between is None
    return format_rate(factor / network.beta) if plain else f"{factor:g} times"


def latency(network: Network, factor: float) -> str:
    """
    >>> latency(Network(alpha=5e-5), 4.0)
    '200 us'
    """
    return f"{network.alpha * factor * 1e6:.3g} us" if network.between is None else f"{factor:g} times"


def write_predicted(flag: str, path: Path, found: Sequence[Simulated]) -> None:
    found = found[:MOST_RUNS]
    grid = Grid(found)
    with bar(None, len(grid.places), "predicting for the sliders") as progress:
        points = ((place, timeline_of(rows), [each.row for each in rows]) for place, rows in grid.points(progress))
        given = [slider["at"] for slider in grid.sliders]
        timeline = timeline_of([grid.at(each, *given) for each in found])  # recorded
        write_schedules(flag, path, timeline, [each.row for each in found], sliders=grid.sliders, points=points)
    nbytes = path.stat().st_size
    if nbytes > LARGE_BYTES:
        smaller = "fewer --schedules make it smaller, or several --fusion, which leave the slider for buckets out"
        note(None, f"{flag} {str(path)!r} has {nbytes / 1e6:.0f} MB: {smaller}")
