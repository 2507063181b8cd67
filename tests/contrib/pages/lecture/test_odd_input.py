"""What readers write that is wrong, never ends, or cannot be run, in a real browser."""

import shutil

from tests.contrib.pages.lecture.cells import ANSWERED, answer, cell, run


def test_what_never_ends_is_stopped(shown):
    page = shown("ring")
    cell(page, "ring").locator("textarea").fill("def f(rank, size):\n    while True:\n        pass")
    cell(page, "ring").locator("textarea").press("Control+Enter")
    cell(page, "ring").locator("text=Stop").click()
    cell(page, "ring").locator(ANSWERED).wait_for()
    assert page.text("[data-cell=ring] .verdict") == "Refused. You stopped it."
    assert run(page, "ring", answer("ring")).startswith("Right."), "Python has started anew"


def test_without_its_python_the_page_says_so(lecture, browser, tmp_path):
    """Somebody has copied one file alone."""
    shutil.copy(lecture / "index.html", tmp_path)
    page = browser.new_page()
    page.goto((tmp_path / "index.html").as_uri())
    page.wait_for_selector(":root[data-python=failed]")
    said = "python.js cannot be loaded: it must be beside this page"
    assert page.locator(".status").inner_text() == said
    page.locator("[data-cell] .actions .main").click()
    page.locator("[data-cell] .verdict", has_text=f"Refused. {said}.").wait_for()
    page.close()
