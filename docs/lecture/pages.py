"""The pages as texts: chapters, exercises with their first replies, and slides, in one file each.

The first replies are computed here, by the desk that the page asks later. So pictures are there before Python is.
"""

import html
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dear_mpi.contrib.pages.whole import framed, sources
from docs.lecture.desk.answer import answer
from docs.lecture.desk.exercises import EXERCISES, Exercise
from docs.lecture.figures import BECAUSE, FIGURES, SLIDERS

HERE = Path(__file__).resolve().parent
OURS = ("look.css", "controls.css", "board.css", "chart.css", "tables.css", "lanes.css", "schedules.css")
PARTS = ("elements.js", "units.js", "theme.js", "sliders.js", "player.js", "ticks.js")
# Of dear_mpi/contrib/pages/web.
SHARED = (*PARTS, "program.js", "words.js", "ways.js", "cells.js", "board.js", "lanes.js")
VIEWS = ("stepper.js", "lanesview.js", "stages.js", "curves.js")
LECTURE = (*VIEWS, "store.js", "engine.js", "colours.js", "editor.js", "cell.js", "figures.js", "lecture.js")
SLIDES = (*VIEWS, "colours.js", "slides.js")
ON_SLIDES = ("ring", "break", "route")  # exercises whose answers are shown
# The page runs Python beside it, in a worker.
ALLOWED = "script-src 'self' file: blob: 'unsafe-inline' 'wasm-unsafe-eval'; worker-src blob:"
MARK = re.compile(r'data-(cell|number|figure)="([\w-]+)"')


def lecture_page() -> str:
    chapters = list(map(chapter, sorted((HERE / "chapters").glob("*.html"))))
    with empty_folder():
        data = {
            "chapters": chapters,
            "exercises": {name: shown(name, each) for name, each in EXERCISES.items()},
            "figures": figures(),
        }
    return page("The dear-mpi lecture", data, ("lecture.css", "editor.css", "views.css"), LECTURE)


def slides_page() -> str:
    with empty_folder():
        solved = {name: cell("answers", name) for name in ON_SLIDES}
        replies = {name: answer({"ask": "cell", "exercise": name, "text": text}) for name, text in solved.items()}
        data = {"figures": figures(), "replies": replies, "code": solved}
    slides = (HERE / "slides.html").read_text(encoding="utf-8")
    return page("dear-mpi: slides", data | {"slides": slides}, ("slides.css", "views.css"), SLIDES)


def page(title: str, data: dict[str, Any], looks: tuple[str, ...], scripts: tuple[str, ...]) -> str:
    return framed(
        title,
        data,
        look=sources(*OURS) + own(*looks),
        script=sources(*SHARED) + own(*scripts),
        allowed=ALLOWED,
        without="This page needs JavaScript, which is turned off.",
    )


def own(*names: str) -> str:
    return "\n".join((HERE / "web" / name).read_text(encoding="utf-8") for name in names)


def chapter(path: Path) -> dict[str, Any]:
    """A chapter's title is its heading; its exercises are those that it names."""
    text = path.read_text(encoding="utf-8")
    title = re.search(r"<h1>(.*?)</h1>", text)
    assert title is not None, f"{path} has no heading"
    exercises = [name for kind, name in MARK.findall(text) if kind != "figure"]
    return {"id": path.stem.partition("-")[2], "title": html.unescape(title[1]), "html": text, "exercises": exercises}


def shown(name: str, exercise: Exercise) -> dict[str, Any]:
    """An exercise as the page has it: where it begins, an answer, and what is seen at first."""
    about: dict[str, Any] = {
        "given": dict(exercise.given),
        "sliders": SLIDERS.get(name, []),
        "because": BECAUSE.get(name, ""),
    }
    if exercise.kind == "number":
        return about | {"because": BECAUSE[name]}
    text, solution = (cell(folder, name) for folder in ("cells", "answers"))
    return about | {"text": text, "answer": solution, "reply": answer({"ask": "cell", "exercise": name, "text": text})}


def cell(folder: str, name: str) -> str:
    return (HERE / folder / f"{name}.py").read_text(encoding="utf-8").rstrip("\n")


def figures() -> dict[str, Any]:
    return {name: figure | {"reply": answer(figure["request"])} for name, figure in FIGURES.items()}


@contextmanager
def empty_folder() -> Iterator[None]:
    """Cells are files of the current folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
