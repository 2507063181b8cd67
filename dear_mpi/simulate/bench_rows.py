"""The rows of a file of ``dear-mpi bench --json``, as far as a network can be fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType

from dear_mpi.bench.case import Row
from dear_mpi.bench.fit import fit_network
from dear_mpi.collectives.program.json_file import read_json
from dear_mpi.collectives.program.network import Network
from dear_mpi.kernels.dtypes import DTYPES

KINDS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "list[int]": (list,)}
KINDS |= {"float | None": (int, float, NoneType)}
MOST, MOST_US = 10**15, 86400e6  # a day
RANGES: dict[str, tuple[float, float]] = {  # of what a fit looks at
    **dict.fromkeys(("ranks", "segment_bytes"), (1, MOST)),
    **dict.fromkeys(("bytes", "count"), (0, MOST)),
    **dict.fromkeys(("update_us", "update_beside_us"), (0, MOST_US)),
    **dict.fromkeys(("p50_us", "mean_us"), (1e-6, MOST_US)),
    "delay_us": (-MOST_US, MOST_US),
}


def read_rows(path: Path) -> list[Row]:
    """The rows in a file.

    Raises:
        ValueError: it cannot be read, has no rows of a benchmark, or a figure in one is none that can be measured.
    """
    content = read_json("network", path)
    try:
        rows = [Row(**row) for row in content]
    except TypeError as error:
        raise ValueError(f"network {str(path)!r} must be a file of dear-mpi bench --json: {error}") from None
    for number, row in enumerate(rows):
        check_row(f"network {str(path)!r}, row {number}", row)
    return rows


def check_row(where: str, row: Row) -> None:
    """See that the values of a row are of their types, and those that matter in their ranges."""
    for field in fields(Row):
        value, kinds = getattr(row, field.name), KINDS[str(field.type)]
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{where}: {field.name} must be of the type {field.type}, not {value!r}")
    if row.dtype not in DTYPES:
        raise ValueError(f"{where}: dtype must be one of {', '.join(DTYPES)}, not {row.dtype!r}")
    for name, (least, most) in RANGES.items():
        value = getattr(row, name)
        if value is not None and not least <= value <= most:
            raise ValueError(f"{where}: {name} must be from {least:g} to {most:g}, not {value!r}")


def fitted(text: str, rows: Sequence[Row]) -> Network:
    """The network that explains the means of a benchmark's rows. An iteration is the sum of many collectives, also of
    the few that take long, of which a median knows nothing.

    Raises:
        ValueError: they are too few.
    """
    fit = fit_network(rows, explains="mean_us")
    if fit is None:
        raise ValueError(f"network {text!r} has no rows of two sizes of an algorithm that sends messages")
    return fit.network
