"""The lecture in a real browser, opened as a file and without a network."""

from docs.lecture.desk.exercises import EXERCISES
from tests.contrib.pages.lecture.cells import ANSWERED, READY, READY_MS, answer, cell, run


def test_pictures_are_there_before_python(lecture, opened):
    page = opened(lecture / "index.html")
    assert page.text("h1") == "A ring in ten lines"
    assert page.page.locator("[data-figure] .board .rank").count() == 4
    page.page.click("[data-figure] >> text=Step ▶")
    assert page.text("[data-figure] .said").startswith("Step 0: every rank sends to its successor")
    assert page.text("[data-figure] .where") == "after step 0"
    page.page.wait_for_selector(READY, timeout=READY_MS)
    assert page.text(".status") == "Python is ready"


def test_a_ring_is_proved_and_a_broken_one_refused(shown):
    page = shown("ring")
    assert run(page, "ring") == "Refused. rank 0: chunk 1 is still empty; expected rank 1's data."
    said = run(page, "ring", answer("break"))
    assert said == "Refused. rank 3, step 1: sends chunk 0 to rank 0 before it holds any data of it."
    assert cell(page, "ring").locator(".where").inner_text() == "step 1 fails"
    assert cell(page, "ring").locator(".board .failed").count() == 1
    assert page.text(".chapters a .done") == "0/1"
    assert run(page, "ring", answer("ring")).startswith("Right. Proved for 2, 3, 4, 5 and 6 ranks")
    assert page.text(".chapters a .done") == "✓"
    assert cell(page, "ring").locator(".results td").all_inner_texts() == ["3", "3", "0.75 n"]


CODE = {"price": "price", "overlap": "overlap", "dear": "dear", "order": "priority", "route": "routes", "break": "race"}
CODE |= {"race": "race"}


def test_answers_are_right_in_the_browser(shown):
    page = shown("ring")
    for name, chapter in CODE.items():
        page.page.click(f'.chapters a[href="#{chapter}"]')
        assert not run(page, name).startswith("Right.")
        cell(page, name).locator("text=Show an answer").click()
        assert run(page, name).startswith("Right."), name
    assert {*CODE, "ring"} == {name for name, exercise in EXERCISES.items() if exercise.kind != "number"}


def test_what_was_written_is_kept(shown):
    page = shown("ring")
    run(page, "ring", answer("ring"))
    page.page.reload()
    assert page.text(".chapters a .done") == "✓"
    assert "(rank - s) % size" in cell(page, "ring").locator("textarea").input_value()
    page.page.click("text=Forget all")
    assert page.text(".chapters a .done") == "0/1"
    assert "TODO" in cell(page, "ring").locator("textarea").input_value()


# What readers write that is wrong, never ends, or cannot be run, in a real browser.


def test_what_never_ends_is_stopped(shown):
    page = shown("ring")
    cell(page, "ring").locator("textarea").fill("def f(rank, size):\n    while True:\n        pass")
    cell(page, "ring").locator("textarea").press("Control+Enter")
    cell(page, "ring").locator("text=Stop").click()
    cell(page, "ring").locator(ANSWERED).wait_for()
    assert page.text("[data-cell=ring] .verdict") == "Refused. You stopped it."
    assert run(page, "ring", answer("ring")).startswith("Right."), "Python has started anew"
