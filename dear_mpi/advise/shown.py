"""The answer at a terminal, as JSON and as a picture."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD

from dear_mpi.advise.answer import Answer, Row, traced
from dear_mpi.advise.observation import Observation
from dear_mpi.advise.said import assumed, paragraph, unseen
from dear_mpi.reporting.terminal import console, table
from dear_mpi.reporting.units import plural
from dear_mpi.simulate.gains import ms
from dear_mpi.simulate.timeline import timeline_of
from dear_mpi.training.log.spans import Timeline


def show_answer(observation: Observation, answers: Sequence[Answer]) -> None:
    """A table of all numbers of ranks, a paragraph for each, and what could not be seen."""
    screen, profile, seen = console(), observation.profile, observation.observed
    forward_s, backward_s = profile.passes_s
    parts = f" in {profile.accumulate} parts" if profile.accumulate > 1 else ""
    screen.print(
        f"{profile.model} on one rank ({profile.device}): {ms(seen.iteration_s)} ms an iteration{parts}; seen: forward "
        f"{ms(forward_s)}, backward {ms(backward_s)}, updates {ms(observation.update_s)}, outside layers "
        f"{ms(profile.rest_s)}: {observation.sum_s / seen.iteration_s:.0%} of it.",
        markup=False,
    )
    for answer in answers:
        screen.print(table_of(answer), markup=False)
        screen.print(paragraph(answer), assumed(answer), sep="\n", markup=False)
    found = list(unseen(observation))
    screen.print("What it could not see:" if found else "", *(f"  {each}" for each in found), sep="\n", markup=False)


def table_of(answer: Answer) -> Any:
    """A line for DDP, and for each of ours."""
    columns = {
        "schedule": lambda row: row.name,
        "fusion": lambda row: str(row.simulated.row["fusion"]),
        "iteration": lambda row: ms(row.iteration_s),
        "exposed": lambda row: ms(exposed_s(answer, row)),
        "/ DDP": lambda row: f"{answer.ddp.iteration_s / row.iteration_s:.3f}",
    }
    caption = "ms of an iteration; exposed: waiting for communication"
    title = f"Predicted, {plural(answer.ranks, 'rank')}, {answer.ddp.simulated.row['network']}"
    left = ("schedule", "fusion")
    return table([answer.rows], columns, left=left, title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1))


def exposed_s(answer: Answer, row: Row) -> float:
    """What an iteration takes beyond what a rank does by itself: the same for all rows but for codes."""
    own = answer.ours[0].simulated.prediction
    if row is answer.ddp:
        return row.iteration_s - (own.forward_s + own.backward_s + own.update_s + own.rest_s)
    return row.simulated.prediction.exposed_s


def rows_of(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """For ``--json``: as ``simulate`` has them, with the name of the line and what an iteration takes."""
    found = []
    for answer in answers:
        below = answer.pays_below
        said = {"int8_pays_below_bits_per_s": below if below < float("inf") else None, "twice_s": answer.twice_s}
        said["observed_s"] = answer.observation.observed.iteration_s
        for row in answer.rows:
            speedup = answer.ddp.iteration_s / row.iteration_s
            own = {"line": row.name, "iteration_s": row.iteration_s, "speedup_vs_ddp": speedup}
            found.append(row.simulated.row | own | said)
    return found


def timeline(answers: Sequence[Answer]) -> Timeline:
    """Of the first number of ranks: DDP, and the fastest of ours."""
    first = answers[0]
    return timeline_of(traced([first.ddp, first.best]))
