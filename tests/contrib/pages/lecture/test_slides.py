"""The slides in a real browser: every one is drawn, at 16:9, as large as the window lets it be."""

import re

import pytest

from docs.lecture.build import LECTURE
from docs.lecture.pages import slides_page
from tests.browser import PHONE
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


def test_the_broken_step_is_red_and_can_be_stepped_to(slides):
    page = slides()
    page.page.evaluate("location.hash = '5'")
    page.page.wait_for_selector("section.now [data-said]")
    assert (
        page.text("section.now [data-said]") == "rank 3, step 1: sends chunk 0 to rank 0 before it holds any data of it"
    )
    assert page.text("section.now .where") == "step 1 fails"
    assert page.page.locator("section.now .board .failed").count() == 1
    page.page.click("section.now >> text=◀ Back")
    assert page.text("section.now .where") == "after step 0"


def test_it_fits_a_phone(slides):
    page = slides(window=PHONE, color_scheme="dark")
    box = page.page.locator("section.now").bounding_box()
    assert box["width"] == pytest.approx(PHONE["width"], abs=1)
    assert box["height"] == pytest.approx(PHONE["width"] * 9 / 16, abs=1)


LETTERS = """() => {
    const found = [], walker = document.createTreeWalker(document.querySelector(".deck"), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode, at = text.parentElement;
        if (!text.textContent.trim() || at.tagName === "title") continue;
        if (!at.checkVisibility({visibilityProperty: true})) continue;
        const times = at.ownerSVGElement ? at.getScreenCTM().a : at.currentCSSZoom;
        found.push([text.textContent.trim(), parseFloat(getComputedStyle(at).fontSize) * times]);
    }
    return found;
}"""
BOXES = """() => [...document.querySelectorAll(".deck > section")].map(slide => {
    const page = slide.getBoundingClientRect();
    const boxes = [...slide.querySelectorAll("*")].map(each => each.getBoundingClientRect());
    const pictures = [...slide.querySelectorAll(".view")].map(each => each.querySelector("svg, ol"));
    return {
        top: Math.min(...boxes.filter(each => each.height).map(each => each.top)) - page.top,
        used: (Math.max(...boxes.map(each => each.bottom)) - page.top) / page.height,
        pictures: pictures.map(each => each.getBoundingClientRect().height),
    };
})"""


def test_on_paper_each_has_a_page_with_its_pictures(slides):
    """A browser prints without a word: no script may be needed that then draws."""
    page = slides()
    page.page.emulate_media(media="print")
    assert page.page.locator(".deck .view").count() == 9
    for box in page.page.evaluate(BOXES):
        assert box["top"] >= 0
        assert 0.65 < box["used"] <= 1, "the whole slide is used, and nothing is cut off"
        assert all(height > 120 for height in box["pictures"])
    assert [letters for letters in page.page.evaluate(LETTERS) if letters[1] < 20] == []
    text = page.page.pdf(prefer_css_page_size=True)
    assert text.count(b"/Type /Page\n") == COUNT


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
    (1, "1", "rank - s"),
    (2, "2", "550"),
    (3, "3", "for bucket in self.fabric.buckets.completed_by(use)"),
    (4, "4", "needed_by"),
    (5, "7", 'Update(shard=True), all_gather("values")'),
    (6, "8", "doubling"),
]
