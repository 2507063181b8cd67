"""Cells of the lecture that is open in a browser: run them, and read what is said."""

from tests.rooms import ROOT

READY_MS = 120_000  # for Python to start, on a machine that does other things
READY = ":root[data-python=ready]"
ANSWERED = ".verdict.right, .verdict.almost, .verdict.wrong"


def cell(page, name):
    return page.page.locator(f"[data-cell={name}]")


def run(page, name, text=None):
    found = cell(page, name)
    if text is not None:
        found.locator("textarea").fill(text)
    found.locator(".actions .main").click()
    found.locator(ANSWERED).wait_for(timeout=READY_MS)
    return " ".join(found.locator(".verdict").inner_text().split())


def answer(name):
    return (ROOT / "docs" / "lecture" / "answers" / f"{name}.py").read_text(encoding="utf-8")
