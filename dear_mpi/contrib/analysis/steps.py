"""Split a collective's time by step: waiting for peers, transfer, combining, copying (``contrib/look.py``).

A rank's calls are sequential, so times in and outside of steps add up to the collective's.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from rich.console import Console

from dear_mpi.bench.case import Case
from dear_mpi.bench.run import Look, Report
from dear_mpi.bench.suite import Suite
from dear_mpi.bench.timing import Context
from dear_mpi.cli.flags import timeline_writer
from dear_mpi.collectives.plans.notes import KINDS, Noted, Notes
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.contrib.analysis.ready import ours, ready
from dear_mpi.contrib.look import StepSpan, spans_of, timeline_of
from dear_mpi.ranks.clock import CommonClock
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import table
from dear_mpi.reporting.units import format_bytes, grouped, plural
from dear_mpi.see.timeline import TimelineFiles
from dear_mpi.training.events.spans import Ranks, starts_of

WARM_UP, RUNS = 2, (5, 20)  # uncounted; range of counted
TOLD = 0.1  # of a collective's time: shorter waits are not traced
Cell: TypeAlias = dict[str, Any]
"""A rank in a step: means over runs, in us, and the peer with the largest part of its waits."""


class Steps(NamedTuple):
    """The steps of a plan: the row for ``--json``, and all ranks' notes of the run of median length.

    Means by rank: ``time_us``, ``plain_us`` (not recorded) and ``outside_us`` (copies before and after, Python between
    calls); ``runs``: how many of middle length count; ``clocks_us``: the possible error across hosts.
    """

    row: dict[str, Any]
    noted: Ranks

    @property
    def name(self) -> str:
        row = self.row
        return f"{row['collective']}, {plural(row['ranks'], 'rank')}, {row['algorithm']}, {format_bytes(row['bytes'])}"


def steps_of(name: str, case: Case, plan: Plan, world: World, seconds: float) -> list[Steps]:
    """Collective: record a plan as often as the seconds allow, in turns with plain runs; none if it has no steps.

    Fill its buffer with values that combining keeps.
    """
    if any(part.step is None for part in plan.run.parts):  # the MPI library's
        return []
    transport = world.transport

    def timed(notes: Notes | None = None) -> tuple[float, float]:
        transport.barrier()
        plan.notes = notes
        try:
            begin_s = perf_counter()
            plan()
            return begin_s, perf_counter()
        finally:
            plan.notes = None

    def turn() -> tuple[Noted, float, float, float]:
        (before_s, after_s), notes = timed(), Notes()
        begin_s, end_s = timed(notes)
        return notes.runs[-1], begin_s, end_s, after_s - before_s

    clock = CommonClock(transport)
    *_, (_, begin_s, end_s, plain) = [turn() for _ in range(WARM_UP)]
    turn_s = max(transport.gather_values(plain + end_s - begin_s))
    turns = [turn() for _ in range(int(min(max(seconds / turn_s, RUNS[0]), RUNS[1])))]
    clock.look()
    aligned = clock.aligned()
    mine = [noted.earlier(aligned.offset_s(begin_s)) for noted, begin_s, _, _ in turns]  # on rank 0's clock
    by_run = [dict(enumerate(each)) for each in zip(*transport.gather_values(mine), strict=True)]
    lasted_s = np.array(transport.gather_values([end_s - begin_s for _, begin_s, end_s, _ in turns]))
    order = lasted_s.max(axis=0).argsort()
    middle = order[len(turns) // 4 : len(turns) - len(turns) // 4].tolist()
    own = [list(spans_of(world.rank, by_run[each][world.rank], starts_of(by_run[each]))) for each in middle]
    clocks_us = aligned.uncertainty_s(turns[-1][2]) * 1e6
    answers = transport.gather_values((cells_of(world.rank, own), fmean(turns[each][3] for each in middle), clocks_us))
    cells, plain_s, uncertain_us = zip(*answers, strict=True)
    time_us = lasted_s[:, middle].mean(axis=1) * 1e6
    row = {
        "collective": case.collective,
        "algorithm": name,
        "backend": transport.name,
        "ranks": world.size,
        "bytes": case.nbytes,
        **case.facts,
        "segment_bytes": plan.segment_bytes,
        "runs": len(middle),
        "time_us": time_us.tolist(),
        "plain_us": [each * 1e6 for each in plain_s],
        "outside_us": (time_us - [sum(map(total_us, each)) for each in cells]).tolist(),
        "clocks_us": max(uncertain_us),
        "cells": [cell for each in cells for cell in each],
    }
    return [Steps(row, by_run[order[len(turns) // 2]])]


def cells_of(rank: int, runs: Sequence[Sequence[StepSpan]]) -> list[Cell]:
    found = []
    for step, spans in grouped((span for run in runs for span in run), lambda span: span.step).items():
        sums_s, awaited_s = dict.fromkeys(KINDS, 0.0), defaultdict[int | None, float](float)
        for span in spans:
            sums_s[span.kind] = sums_s.get(span.kind, 0.0) + span.seconds
            if span.kind == "waiting":
                awaited_s[span.peer] += span.seconds
        parts = {f"{kind}_us": sums_s[kind] * 1e6 / len(runs) for kind in KINDS}
        waits_for = max(awaited_s, key=awaited_s.__getitem__, default=None)
        found.append({"rank": rank, "step": step, **parts, "waits_for": waits_for})
    return sorted(found, key=lambda cell: cell["step"])


def total_us(cell: Cell) -> float:
    return float(sum(cell[f"{kind}_us"] for kind in KINDS))


def in_us(value: float) -> str:
    return f"{value:.{0 if value >= 100 else 1}f}"


def show(screen: Console, found: Sequence[Steps]) -> None:
    if not found:
        screen.print("No steps: none of these plans sends messages.")
    for each in found:
        show_steps(screen, each.row)
        for text in words_of(each):
            screen.print(text, soft_wrap=True)


def show_steps(screen: Console, row: Mapping[str, Any]) -> None:
    """Print a line per step (means over ranks), outside, and all."""
    columns: dict[str, Callable[[Sequence[str]], str]] = {}
    for place, head in enumerate(("step", *KINDS, "all", "slowest rank")):
        columns[head] = lambda line, place=place: line[place]  # type: ignore[misc]

    def line(name: object, parts_us: Iterable[float], by_rank_us: Mapping[int, float]) -> list[str]:
        slowest = max(by_rank_us, key=by_rank_us.__getitem__)
        whole = in_us(sum(by_rank_us.values()) / row["ranks"])
        parts = [in_us(part_us) for part_us in parts_us] or [""] * len(KINDS)
        return [str(name), *parts, whole, f"{slowest} ({in_us(by_rank_us[slowest])})"]

    def parts_us(cells: Sequence[Cell]) -> list[float]:
        return [sum(cell[f"{kind}_us"] for cell in cells) / row["ranks"] for kind in KINDS]

    by_step = sorted(grouped(row["cells"], lambda cell: cell["step"]).items())
    steps = [line(step, parts_us(cells), {cell["rank"]: total_us(cell) for cell in cells}) for step, cells in by_step]
    outside, whole = (dict(enumerate(row[name])) for name in ("outside_us", "time_us"))
    groups = [steps, [line("outside", (), outside)], [line("all", parts_us(row["cells"]), whole)]]
    op = [row["op"]] * (row["op"] != "none")
    about = (
        row["algorithm"],
        format_bytes(row["bytes"]),
        row["collective"],
        plural(row["ranks"], "rank"),
        row["dtype"],
    )
    screen.print(
        table(
            groups,
            columns,
            title=f"where the time goes: {', '.join((*about, *op, row['placement']))}, over {row['backend']}",
            caption=f"us: means over ranks and over {plural(row['runs'], 'run')}, those of the middle half by length",
        )
    )


def words_of(steps: Steps) -> list[str]:
    row, said = steps.row, list[str]()
    time_us, plain_us = fmean(row["time_us"]), fmean(row["plain_us"])
    if row["cells"]:
        slow = max(row["cells"], key=total_us)
        kind = max(KINDS, key=lambda kind: float(slow[f"{kind}_us"]))
        what = f"{in_us(slow[f'{kind}_us'])} us of it {kind}"
        said.append(f"Slowest: step {slow['step']} on rank {slow['rank']}, {in_us(total_us(slow))} us, {what}.")
    starts = starts_of(steps.noted)
    chain = traced([list(spans_of(rank, noted, starts)) for rank, noted in steps.noted.items()])
    if chain and chain[0][1].seconds >= TOLD * 1e-6 * time_us:
        waits = [
            f"rank {rank} in step {span.step} for rank {span.peer} ({in_us(span.seconds * 1e6)} us)"
            for rank, span in chain
        ]
        late = f"The longest wait of the median run leads back to rank {chain[-1][1].peer}"
        said.append(f"{late}: {', as '.join(waits)}.")
    clocks = f" Clocks of hosts agree within {in_us(row['clocks_us'])} us." if row["clocks_us"] else ""
    with_it = f"{in_us(time_us)} us with it, {in_us(plain_us)} us without ({time_us / plain_us - 1:+.0%})"
    return [*said, f"Recording: {with_it}.{clocks}"]


def traced(spans: Sequence[Sequence[StepSpan]]) -> list[tuple[int, StepSpan]]:
    """Trace a run's longest wait to its cause: the last peer was late, or slow to send.

    It continues while the peer waited at least half as long at that time.
    """
    waits = [(rank, span) for rank, mine in enumerate(spans) for span in mine if span.kind == "waiting"]
    chain = [max(waits, key=lambda wait: wait[1].seconds)] if waits else []
    while chain:
        last = chain[-1][1]
        common_s = {
            wait: min(last.end_s, wait[1].end_s) - max(last.begin_s, wait[1].begin_s)
            for wait in waits
            if wait[0] == last.peer and wait[1].end_s < last.end_s
        }
        if not common_s or 2 * max(common_s.values()) < last.seconds:
            return chain
        chain.append(max(common_s, key=common_s.__getitem__))
    return chain


def recorded(world: World, suite: Suite) -> list[Steps]:
    """Collective: record our plans at each collective's largest size."""
    context, found = Context.of(world, suite), list[Steps]()
    with context.streams.compute.use():
        for cases in grouped(suite.cases(world.size), lambda case: case.collective).values():
            case = max(cases, key=lambda case: case.nbytes)  # the first of several
            with ready(case, ours(suite.keys(case, world.size)), context) as plans:
                for name, each in plans.items():
                    assert isinstance(each.run, Plan), "``ours`` has kept only plans"
                    found += steps_of(name, case, each.run, world, suite.budget_s / len(plans))
    return found


def steps(flags: Mapping[str, Any]) -> Callable[[World, Suite, Report], Look]:
    if flags.get("device", "cpu") != "cpu":
        raise ValueError("--steps needs --device cpu: on a GPU a call only launches what combines and copies")
    files = timeline_writer(flags)

    def look(world: World, suite: Suite, report: Report) -> Look:
        found = recorded(world, suite)
        written = {"--timeline": partial(write, files, found)} if files and found else {}
        return Look({"steps": [each.row for each in found]}, partial(show, found=found), written)

    return look


def write(files: TimelineFiles, found: Sequence[Steps]) -> None:
    title = f"Where the time goes, over {', '.join(dict.fromkeys(each.row['backend'] for each in found))}"
    within_s = max(each.row["clocks_us"] for each in found) * 1e-6
    files(timeline_of(title, {each.name: each.noted for each in found}, within_s))


def timeline(flags: Mapping[str, Any]) -> Callable[[World, Suite, Report], Look]:
    if not flags.get("steps"):
        raise ValueError("--timeline shows what --steps records: give both")
    return lambda world, suite, report: Look({}, lambda screen: None)
