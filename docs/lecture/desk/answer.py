"""What the page asks: a request as JSON, and the reply to it. Errors of readers are replies, too."""

import contextlib
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from dear_mpi.collectives import programs
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.reporting.units import parse
from docs.lecture.desk import algorithms
from docs.lecture.desk.checks import PRICED
from docs.lecture.desk.curves import curves, cuts
from docs.lecture.desk.exercises import EXERCISES, Exercise
from docs.lecture.desk.reader import FILE, Cell, line_of

Reply: TypeAlias = dict[str, Any]
"""``right``: whether it solves the exercise; ``said``: a sentence; ``line``: where a cell fails; and what is drawn."""


def answer_text(text: str) -> str:
    """The reply to a request, both as JSON."""
    return json.dumps(answer(json.loads(text)))


def answer(request: Mapping[str, Any]) -> Reply:
    return ASKED[request["ask"]](request)


def run_cell(request: Mapping[str, Any]) -> Reply:
    """Run what a reader wrote for an exercise; ``given`` may change what it is run with."""
    exercise = EXERCISES[request["exercise"]]
    cell = Cell(request["text"])
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the cell keeps what is shown of it
            reply = CELLS[exercise.kind](cell, exercise, {**exercise.given, **request.get("given", {})})
    except Exception as error:  # of the project's proofs, or of the reader's code: both are for the reader
        reply = {"right": False, "said": in_words(error), "line": line_of(error)}
    return {"kind": exercise.kind, "line": None, "output": cell.output} | reply


def in_words(error: Exception) -> str:
    ours = isinstance(error, ValueError | ProgramError)
    said = str(error) if ours else f"{type(error).__name__}: {error}"
    said = re.sub(rf" \(({re.escape(FILE)}, )?line \d+\)", "", said)  # which the page says by itself
    return said.replace(str(Path(FILE).resolve()), FILE)


def algorithm(cell: Cell, exercise: Exercise, given: Mapping[str, Any]) -> Reply:
    """Proved, drawn up to its fault, and priced."""
    function, ranks = cell.value("algorithm"), given["ranks"]
    try:
        written = algorithms.Written.of(cell.name("algorithm"), given["collective"], ranks, given["sizes"])
        ranks = len(written.drawn)
    finally:
        cell.prints(lambda: algorithms.all_ranks(function, ranks))
    missing = exercise.check(written)
    right = not missing and (written.fault is None or exercise.breaks)
    reply: Reply = {"right": right, "missing": missing, "board": algorithms.board_of(written.drawn)}
    if written.fault:
        return reply | {"said": str(written.fault), "proved": False, "on": f"On {ranks} ranks"}
    reply |= {"said": written.promise, "proved": True, "figures": algorithms.figures_of(written)}
    if exercise.races and "all_reduce" in written.serves:
        reply["race"] = algorithms.race(written, "all_reduce")
    return reply


def schedule(cell: Cell, exercise: Exercise, given: Mapping[str, Any]) -> Reply:
    """Rehearsed, predicted, and drawn beside ours."""
    from docs.lecture.desk.schedules import Setting, iterations, lanes_of, predicted

    cell.value("schedule")
    name, setting = cell.name("schedule"), Setting(**given)
    cell.prints(lambda: iterations(name, setting))
    found = {each: predicted(each, setting) for each in exercise.beside} | {"yours": predicted(name, setting)}
    missing = exercise.check(name)
    said = f"It breaks no rule, and an iteration takes {found['yours'].iteration_s * 1e3:.2f} ms."
    return {"right": not missing, "missing": missing, "said": said, "proved": True, "lanes": lanes_of(found, setting)}


def route(cell: Cell, exercise: Exercise, given: Mapping[str, Any]) -> Reply:
    """Proved, and drawn with the stage that breaks it."""
    from docs.lecture.desk.routes import broken_stage, facts_of, proved, stages_of

    cell.value("route")
    found, proof, error = proved(cell.name("route"))
    reply: Reply = {"stages": stages_of(found, broken_stage(error)), "route": found.name}
    if proof is None:
        return reply | {"right": False, "missing": "", "said": str(error), "proved": False}
    missing = exercise.check(proof)
    facts = facts_of(found, proof)
    return reply | {
        "right": not missing,
        "missing": missing,
        "said": "Proved: it trains.",
        "proved": True,
        "facts": facts,
    }


def formula(cell: Cell, exercise: Exercise, given: Mapping[str, Any]) -> Reply:
    function = cell.value("algorithm")
    cell.prints(lambda: function(*PRICED[0]))
    missing = exercise.check(function)
    return {"right": not missing, "missing": missing, "said": "" if missing else "It agrees with the replay."}


def number(request: Mapping[str, Any]) -> Reply:
    """Check a number that a reader has typed."""
    exercise, text = EXERCISES[request["exercise"]], " ".join(str(request["value"]).split())
    try:
        value = parse("the answer", text.replace(",", ".").replace(" ", ""), exercise.units, exercise.example)
    except ValueError:
        said = f"{text!r} is no number, or has another unit: write" if text else "Write"
        return {"right": False, "missing": f"{said} it like {exercise.example}."}
    missing = exercise.check(value)
    return {"right": not missing, "missing": missing}


def shown_board(request: Mapping[str, Any]) -> Reply:
    given = request["given"]
    return {"board": algorithms.board_of(programs(given["name"], given["collective"], given["ranks"]))}


def shown_route(request: Mapping[str, Any]) -> Reply:
    from docs.lecture.desk.routes import facts_of, proved, stages_of

    found, proof, _ = proved(request["given"]["name"])
    return {"stages": stages_of(found), "facts": facts_of(found, proof) if proof else []}


def shown_lanes(request: Mapping[str, Any]) -> Reply:
    from docs.lecture.desk.schedules import Setting, lanes

    return {"lanes": lanes(request["schedules"], Setting(**request["given"]))}


Kind: TypeAlias = Callable[[Cell, Exercise, Mapping[str, Any]], Reply]
CELLS: dict[str, Kind] = {"algorithm": algorithm, "schedule": schedule, "route": route, "formula": formula}
ASKED: dict[str, Callable[[Mapping[str, Any]], Reply]] = {
    "cell": run_cell,
    "number": number,
    "lanes": shown_lanes,
    "board": shown_board,
    "route": shown_route,
    "curves": lambda request: {"curves": curves(**request["given"])},
    "cuts": lambda request: {"curves": cuts(**request["given"])},
}
