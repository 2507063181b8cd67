"""What readers write that is wrong, never ends, or cannot be run, in a real browser."""

from tests.contrib.pages.lecture.cells import ANSWERED, answer, cell, run


def test_what_never_ends_is_stopped(shown):
    page = shown("ring")
    cell(page, "ring").locator("textarea").fill("def f(rank, size):\n    while True:\n        pass")
    cell(page, "ring").locator("textarea").press("Control+Enter")
    cell(page, "ring").locator("text=Stop").click()
    cell(page, "ring").locator(ANSWERED).wait_for()
    assert page.text("[data-cell=ring] .verdict") == "Refused. You stopped it."
    assert run(page, "ring", answer("ring")).startswith("Right."), "Python has started anew"
