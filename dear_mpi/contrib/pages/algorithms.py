"""Write the page of one algorithm or two: all numbers of ranks up to a limit, and sliders for prices."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dear_mpi.collectives import programs
from dear_mpi.collectives.algorithms.registry import find_algorithm, runner_of
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.hosts import rates_of, spread
from dear_mpi.collectives.program.program import COLLECTIVES, asks_for
from dear_mpi.contrib.look import label
from dear_mpi.contrib.pages.priced import BETWEEN, GAMMA, priced
from dear_mpi.contrib.pages.steps import steps_of
from dear_mpi.contrib.pages.whole import Kind, whole, write_page
from dear_mpi.reporting.units import plural

if TYPE_CHECKING:  # the lecture has no terminal
    from dear_mpi.see.explain import Asked

MOST_ALGORITHMS = 2  # side by side
MOST_RANKS = 16
PIECES = (1, 2, 4, 8, 16, 32)  # on a segmented algorithm's slider
MOST_BYTES = 800_000  # of data; the page is below 1 MB
BOARD = ("program.js", "words.js", "ways.js", "cells.js", "board.js")
PAGE = Kind(
    scripts=(
        *("price.js", *BOARD),
        *(
            "holdings.js",
            "follow.js",
            "ticks.js",
            "chart.js",
            "side.js",
            "results.js",
            "prices.js",
            "player.js",
            "algorithm.js",
        ),
    ),
    looks=("board.css", "chart.css", "tables.css", "algorithm.css"),
)

MEANINGS = {  # of ranks' data at begin and end
    "reduce_scatter": (
        "Every rank has numbers of its own in all chunks.",
        "Each rank ends with the sum over all ranks of the chunks that belong to it.",
    ),
    "all_gather": ("Each rank has the chunks that belong to it.", "Every rank ends with all chunks."),
    "all_reduce": (
        "Every rank has numbers of its own in all chunks.",
        "Every rank ends with the sum over all ranks of every chunk.",
    ),
    "broadcast": ("Rank 0 has all chunks.", "Every rank ends with all chunks."),
    "reduce": (
        "Every rank has numbers of its own in all chunks.",
        "Rank 0 ends with the sum over all ranks of every chunk.",
    ),
    "all_to_all": (
        "Chunk c of rank r is for rank c.",
        "Chunk c of rank r ends as what rank c had for rank r.",
    ),
}


def write_algorithms(flag: str, path: Path, asked: Asked) -> None:
    """Raises:
    ValueError: there are too many algorithms, one sends no messages, or the file cannot be written.
    """
    how: dict[str, Any] = {"hosts": asked.hosts, "rates": asked.rates, "pieces": asked.pieces}
    data = algorithms_data(flag, asked.algorithms, asked.collective, asked.ranks, **how)
    title = f"{' beside '.join(each['name'] for each in data['algorithms'])}: {asked.collective}"
    write_page(flag, path, whole(PAGE, title, data))


def algorithms_data(
    flag: str,
    names: Sequence[str],
    collective: str,
    size: int,
    *,
    hosts: int = 1,
    rates: tuple[float, float] | None = None,
    pieces: int = 1,
) -> dict[str, Any]:
    """Return the page's data: all sizes from 2 on that fit in it, and ``size``."""
    if len(names) > MOST_ALGORITHMS:
        raise ValueError(f"{flag} shows at most {MOST_ALGORITHMS} algorithms side by side, not {len(names)}")
    if size > MOST_RANKS:
        raise ValueError(f"{flag} shows at most {MOST_RANKS} ranks, not {size}: more of them are no longer legible")
    for name in names:
        if runner_of(name) == "shared":
            raise ValueError(f"{flag} shows messages, and {name!r} sends none: its ranks share memory")
    spread(size, hosts)
    how = {"hosts": hosts, "rates": rates, "pieces": pieces}
    assumed = f"To add a byte takes {GAMMA:g} of the time to move it."
    shown = [shown_of(name, collective, size, MOST_BYTES // len(names), **how) for name in names]
    return {
        "collective": collective,
        "meaning": dict(zip(("begins", "ends"), MEANINGS[collective], strict=True)),
        "assumed": assumed + f" Between hosts latency is {BETWEEN:g} times as long." * (hosts > 1),
        "ranks": size,
        "pieces": pieces,
        "algorithms": shown,
        "least": {str(each): least(collective, each) for each in range(1, MOST_RANKS + 1)},
    }


def shown_of(name: str, collective: str, size: int, room: int, **how: Any) -> dict[str, Any]:
    """Return an algorithm's lesson, and its programs by number of ranks, as many as fit.

    ``cuts`` has the programs for other numbers of pieces.
    """
    algorithm = find_algorithm(name, collective)
    lesson = inspect.getdoc(inspect.getmodule(algorithm)) or ""
    found: dict[int, Mapping[str, Any]] = {}
    for each in (size, *(other for other in range(2, MOST_RANKS + 1) if other != size)):
        one = one_size(name, collective, each, **how)
        room -= len(json.dumps(one, separators=(",", ":")))
        if found and room < 0:
            break
        found[each] = one
    sizes = {str(each): found[each] for each in sorted(found)}
    cuts: dict[str, Any] = {}
    for pieces in sorted({*PIECES} - {how["pieces"]}) if asks_for(algorithm, "pieces") else ():
        cut = {each: one_size(name, collective, int(each), **(how | {"pieces": pieces})) for each in sizes}
        room -= len(json.dumps(cut, separators=(",", ":")))
        if room < 0:
            break
        cuts[str(pieces)] = cut
    return {"name": label(name), "lesson": lesson, "sizes": sizes, "cuts": cuts}


def one_size(
    name: str, collective: str, size: int, *, hosts: int, rates: tuple[float, float] | None, pieces: int
) -> dict[str, Any]:
    """Return the steps on ``size`` ranks, equally spread over hosts if possible; of invalid programs only the fault."""
    layout = spread(size, min(hosts, size))
    known = None if rates is None else rates_of(*rates, layout)
    try:
        written = programs(name, collective, size, hosts=layout, rates=known, pieces=pieces)
        found = steps_of(written, layout)
    except ProgramError as error:
        return {"size": size, "unreadable": f"{plural(size, 'rank')}: {error}"}
    whole = len(found["changes"])  # valid steps
    messages = [[flat[at : at + 6] for at in range(0, len(flat), 6)] for flat in found["steps"][:whole]]
    able = [replace(each, steps=each.steps[:whole]) for each in written]
    return found | {"prices": priced(able, layout, messages)}


def least(collective: str, size: int) -> float:
    """Return the minimal share of the buffer on some rank's link, in one direction, under any algorithm.

    Source: nccl-tests (busbw); Chan et al., Collective communication, CCPE 19 (2007).

    >>> [least(collective, 4) for collective in ("all_reduce", "reduce_scatter", "broadcast")]
    [1.5, 0.75, 1.0]
    """
    contract = COLLECTIVES[collective]
    if contract.rooted:
        return float(size > 1)
    return (size - 1) / size * (1 + (contract.reduces and contract.ends(0, size)))
