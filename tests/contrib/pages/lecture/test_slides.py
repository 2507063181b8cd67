"""The slides in a real browser: every one is drawn, at 16:9, as large as the window lets it be."""

import re

import pytest

from docs.lecture.build import LECTURE
from docs.lecture.pages import slides_page
from tests.rooms import ROOT

COUNT = 15


@pytest.fixture
def slides(tmp_path, opened):
    def show(**how):
        file = tmp_path / "slides.html"
        file.write_text(slides_page(), encoding="utf-8")
        return opened(file, **how)

    return show


def test_each_is_drawn(slides):
    page = slides()
    assert page.text("section.now h1") == "When should gradients travel?"
    seen = set()
    for number in range(COUNT):
        assert page.text(".place") == f"{number + 1} / {COUNT}"
        shown = page.page.locator("section.now")
        assert shown.count() == 1
        seen.add(shown.locator("h1").inner_text())
        for each in shown.locator("[data-figure], [data-cell-view], [data-code], [data-said]").all():
            assert each.inner_html().strip(), "it is not empty"
        low, high = page.page.evaluate(
            "[...document.querySelectorAll('section.now > *')].map(each => each.getBoundingClientRect())"
            ".reduce(([low, high], {left, bottom}) => [Math.min(low, left), Math.max(high, bottom)], [1e9, 0])"
        )
        assert low >= 0
        assert high <= 800, number + 1
        page.page.keyboard.press("ArrowRight")
    assert len(seen) == COUNT, "one idea each"
    page.page.keyboard.press("ArrowRight")
    assert page.text(".place") == f"{COUNT} / {COUNT}"
    page.page.keyboard.press("Home")
    assert page.text(".place") == f"1 / {COUNT}"


def test_no_task_of_a_student_prints_its_answer():
    """On the sheet, and in the exercises of the lecture."""
    exercises = {path.stem[0]: path.read_text("utf-8") for path in (LECTURE / "chapters").glob("*.html")}
    sheet = (ROOT / "docs" / "tasks.md").read_text("utf-8")
    assert "answers/" not in sheet
    for task, chapter, answer in ANSWERS:
        assert answer not in "".join(re.split(r"^## ", sheet, flags=re.MULTILINE)[task])
        assert answer not in exercises[chapter]
    assert "needed_by" in (LECTURE / "answers" / "dear.py").read_text("utf-8")


# The number of a task, and of its chapter; what solves it.
ANSWERS = [
    (1, "1", "rank - s"), (2, "2", "550"), (3, "3", "for bucket in self.fabric.buckets.completed_by(use)"),
    (4, "4", "needed_by"), (5, "7", 'Update(shard=True), all_gather("values")'), (6, "8", "doubling"),
]  # fmt: skip
