"""The exercises of the lecture, without a browser: answers are right, and what is wrong is refused in words."""

import re
import subprocess
import sys

import pytest

from docs.lecture.desk.answer import answer
from docs.lecture.desk.exercises import EXERCISES
from tests.rooms import ROOT

LECTURE = ROOT / "docs" / "lecture"
CELLS = [name for name, exercise in EXERCISES.items() if exercise.kind != "number"]
NUMBERS = {"crossing": ("550", "5500"), "buckets": ("4", "16"), "rule": ("176.5", "203")}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def text_of(name, folder="answers"):
    return (LECTURE / folder / f"{name}.py").read_text(encoding="utf-8")


def run(name, text, **given):
    return answer({"ask": "cell", "exercise": name, "text": text, "given": given})


@pytest.mark.parametrize("name", CELLS)
def test_answers_are_right(name):
    reply = run(name, text_of(name))
    assert reply["right"], reply
    assert not reply["missing"]


@pytest.mark.parametrize("name", CELLS)
def test_what_a_cell_begins_with_is_not(name):
    reply = run(name, text_of(name, "cells"))
    assert not reply["right"]
    assert reply["missing"] or not reply["proved"]
    assert reply["line"] is None, "it runs"


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name):
    right, wrong = (answer({"ask": "number", "exercise": name, "value": value}) for value in NUMBERS[name])
    assert right == {"right": True, "missing": ""}
    assert not wrong["right"]
    assert len(wrong["missing"]) > 20


@pytest.mark.parametrize("text", ["many", "", "550 lines", "1,000.5", "nan", "-4"])
def test_what_is_no_number_is_told_how_to_write_one(text):
    name = "crossing"
    said = answer({"ask": "number", "exercise": name, "value": text})["missing"]
    begun = f"'{text}' is no number, or has another unit: write it like " if text else "Write it like "
    assert said == f"{begun}{EXERCISES[name].example}."


def test_every_exercise_is_in_a_chapter_once():
    texts = [path.read_text(encoding="utf-8") for path in sorted((LECTURE / "chapters").glob("*.html"))]
    named = re.findall(r'data-(?:cell|number)="(\w+)"', "".join(texts))
    assert sorted(named) == sorted(EXERCISES)
    assert len(texts) == 9


def test_a_broken_ring_is_refused_with_rank_step_and_chunk():
    reply = run("ring", text_of("break"))
    assert not reply["right"]
    assert reply["said"] == "rank 3, step 1: sends chunk 0 to rank 0 before it holds any data of it"
    fault = reply["board"]["steps"]["fault"]
    assert (fault["rank"], fault["step"], fault["chunk"]) == (3, 1, 0)


def test_what_is_proved_on_the_shown_ranks_may_be_wrong_on_others():
    text = text_of("ring").replace("steps = []", "steps = []\n    size = size - (size == 5)")
    reply = run("ring", text)
    assert reply["said"].startswith("on 5 ranks: ")
    assert reply["board"]["steps"]["fault"] is None
    assert reply["on"] == "On 4 ranks", "there is nothing to draw for 5"


@pytest.mark.parametrize(("name", "text", "line", "said"), [
    ("ring", "def f(rank, size):\n    return nothing", 2, "NameError: name 'nothing' is not defined"),
    ("ring", "def f(rank, size)\n    pass", 1, "algorithm file 'your.py' fails: SyntaxError: expected ':'"),
    ("ring", "x = 1", None, "the cell defines no algorithm: it must have a function"),
    ("ring", "def f(rank, size):\n    return 3", None, "must return a Program"),
    ("price", "def f(ranks, nbytes, alpha, beta):\n    return 1 / 0", 2, "ZeroDivisionError"),
    ("overlap", "class Mine:\n    pass", None, "must be a class derived from Schedule"),
    ("route", "mine = 3", None, "must be a Route"),
])  # fmt: skip
def test_mistakes_are_told_with_their_line(name, text, line, said):
    reply = run(name, text)
    assert (reply["right"], reply["line"]) == (False, line)
    assert said in reply["said"]
    assert str(ROOT) not in reply["said"]


ROWS = "rank 0 of 4\nrank 1 of 4\nrank 2 of 4\nrank 3 of 4\n"


@pytest.mark.parametrize("name", ["ring", "break"])
@pytest.mark.parametrize("place", ["answers", "cells"])
def test_what_a_cell_prints_is_shown_for_one_run(name, place):
    text = text_of(name, place).replace("    steps = []", "    print(f'rank {rank} of {size}')\n    steps = []")
    for _ in range(2):
        assert run(name, "print('loaded')\n" + text)["output"] == "loaded\n" + ROWS, "also if it is run again"


@pytest.mark.parametrize(("old", "new", "said"), [
    ("self.fabric.buckets.needed_by(use)", "[]", "was not waited for (in before_forward(0)"),
    ('self.fabric.start("all_gather", bucket)', 'self.fabric.start("all_reduce", bucket)', "not among its collectives"),
    ("def after_backward", "def before_backward", "before layer 3 wrote gradients"),
    ('self.fabric.start("reduce_scatter", bucket)', "pass", "without a reduce_scatter before it"),
])  # fmt: skip
def test_schedules_that_break_a_rule_are_refused(old, new, said):
    reply = run("dear", text_of("dear").replace(old, new))
    assert not reply["right"]
    assert said in reply["said"]


def test_sliders_change_what_a_cell_is_run_with():
    slow, fast = (run("dear", text_of("dear"), ratio=ratio)["lanes"]["figures"] for ratio in (4, 1))
    assert slow[1][1] == pytest.approx(0.019)
    assert fast[1][1] == pytest.approx(0.0125, rel=0.05)
    assert len(run("ring", text_of("ring"), ranks=7)["board"]["steps"]["start"]) == 7


def test_a_right_route_that_was_not_asked_for():
    text = text_of("route").replace('Update(shard=True), all_gather("values")', 'all_gather("gradients"), Update()')
    reply = run("route", text)
    assert reply["proved"]
    assert "every rank updates all parameters" in reply["missing"]


def test_a_race_has_the_fastest_first():
    rows = run("race", text_of("race"))["race"]
    assert [row[1] for row in rows] == sorted(row[1] for row in rows)
    assert {"yours", "ring", "rabenseifner"} <= {row[0] for row in rows}


BARE = """
import sys
from pathlib import Path
from dear_mpi.collectives.program import user_file
from docs.lecture.desk.answer import answer
from docs.lecture.desk.exercises import EXERCISES
for name, exercise in EXERCISES.items():
    path = Path(sys.argv[1]) / f"{name}.py"
    if path.exists():
        assert answer({"ask": "cell", "exercise": name, "text": path.read_text()})["right"], name
print(sys.modules["numpy"].__file__)
"""


def test_the_desk_needs_no_library():
    """As in a browser: no installed package can be imported, and what stands for NumPy is enough."""
    path = f"{LECTURE / 'standin'}:{ROOT}"
    command = [sys.executable, "-S", "-c", BARE, str(LECTURE / "answers")]
    found = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == str(LECTURE / "standin" / "numpy.py")
