"""The slides in a real browser: every one is drawn, at 16:9, as large as the window lets it be."""

import pytest

from docs.lecture.pages import slides_page
from tests.browser import PHONE

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


def test_on_paper_each_has_a_page(slides):
    page = slides()
    page.page.emulate_media(media="print")
    text = page.page.pdf(prefer_css_page_size=True)
    assert text.count(b"/Type /Page\n") == COUNT
