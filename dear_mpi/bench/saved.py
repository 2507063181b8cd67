"""Read saved benchmark runs, find their points, and check that two runs are comparable."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import convert

from dear_mpi.bench.machine_file import KIND, MachineFile, Row
from dear_mpi.collectives.program.json_file import reading
from dear_mpi.reporting.units import check_distinct

# Rows that agree in these columns are one point: all choices, and the start of samples.
CHOSEN = (*KIND, "start", "algorithm", "memory", "segment_bytes", "bytes")
# Keys of the file about where and how it was made (provenance.py), without the cores of each rank.
HEAD = (
    *("host", "date", "version", "commit", "command", "mpi", "launcher", "hosts", "cores", "clock", "cpu", "kernel"),
    *("congestion_control", "versions", "environment"),
)
EMULATED = "EMULATED"

Point: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Run:
    """A run's rows, its file's name, and the rest of the file (``head``)."""

    name: str
    rows: Sequence[Row]
    head: Mapping[str, Any] = field(default_factory=dict)

    @property
    def provenance(self) -> dict[str, Any]:
        """Return the facts about where and how the run was made; empty in a file with only rows."""
        return {name: self.head[name] for name in HEAD if name in self.head}

    @property
    def points(self) -> dict[Point, Row]:
        return {point_of(row): row for row in self.rows}


def point_of(row: Row) -> Point:
    return tuple(getattr(row, name) for name in CHOSEN)


def read_run(text: str) -> Run:
    """Read a file of ``bench --json``. Raises a ValueError for other files."""
    with reading("run", Path(text), "dear-mpi bench --json") as content:
        rows = convert(content, MachineFile).rows
        if not rows:
            raise ValueError("it has no rows")
        point, times = Counter(map(point_of, rows)).most_common(1)[0]
        if times > 1:
            raise ValueError(f"it has {times} rows of one point ({', '.join(map(str, point))})")
    return Run(text, rows, {name: value for name, value in content.items() if name != "rows"})


def read_runs(what: str, files: Sequence[str]) -> list[Run]:
    """Read several files. Also raises a ValueError if two names are equal."""
    check_distinct(what, files)
    return list(map(read_run, files))


def check_comparable(one: Run, other: Run) -> None:
    """Raise a one-line ValueError if runs share no point, or only one has emulated links."""
    emulated = [any(EMULATED in row.backend for row in run.rows) for run in (one, other)]
    if emulated[0] != emulated[1]:
        real, slowed = (other, one) if emulated[0] else (one, other)
        raise ValueError(f"links are emulated in {slowed.name} and real in {real.name}: they cannot be compared")
    if one.points.keys() & other.points.keys():
        return
    for name in CHOSEN:
        values = [dict.fromkeys(getattr(row, name) for row in run.rows) for run in (one, other)]
        if not values[0].keys() & values[1].keys():
            here, there = (", ".join(map(str, each)) for each in values)
            alike = "; bench --start barrier makes them alike" * (name == "start")
            raise ValueError(
                f"no point is in both runs: {name} is {here} in {one.name}, and {there} in {other.name}{alike}"
            )
    raise ValueError(f"no point is in both {one.name} and {other.name}: a point is {', '.join(CHOSEN)}")


def heads(runs: Sequence[Run]) -> dict[str, str]:
    """Return where and how one side's runs were made, as a text by name."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        libraries = {"library": ", ".join(dict.fromkeys(row.backend for row in run.rows))}
        hosts = {"ranks on each host": ", ".join(map(str, run.rows[0].hosts))}
        for name, value in flat({**run.provenance, **libraries, **hosts}):
            found.setdefault(name, {})[value] = None
    return {name: "; ".join(values) for name, values in found.items()}


def flat(head: Mapping[str, Any], within: str = "") -> Sequence[tuple[str, str]]:
    """Flatten nested values to names and texts.

    >>> flat({"host": "a", "versions": {"numpy": "2"}, "command": ["dear-mpi", "bench"]})
    [('host', 'a'), ('versions.numpy', '2'), ('command', 'dear-mpi bench')]
    """
    found = list[tuple[str, str]]()
    for name, value in head.items():
        if isinstance(value, Mapping):
            found += flat(value, f"{within}{name}.")
        else:
            found.append((f"{within}{name}", " ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return found
