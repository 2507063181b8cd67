"""The lecture, built once and opened once: skipped where there is no Chromium or npm."""

import pytest

from docs.lecture.build import build
from tests.browser import WIDE, Opened
from tests.contrib.pages.lecture.cells import READY, READY_MS
from tests.rooms import ROOT

KEPT = ROOT / "build" / "lecture"


@pytest.fixture(scope="session")
def lecture(browser):
    """The folder of the lecture; Pyodide is fetched once, into build/."""
    try:
        build(KEPT)
    except SystemExit as error:
        pytest.skip(f"the lecture is not built: {error}")
    return KEPT


@pytest.fixture(scope="module")
def started(lecture, browser):
    """One page for most tests, in which Python is ready."""
    context = browser.new_context(viewport=WIDE, reduced_motion="reduce")
    page = Opened(context.new_page(), lecture / "index.html")
    page.page.wait_for_selector(READY, timeout=READY_MS)
    yield page
    context.close()


@pytest.fixture
def shown(started):
    """The page at a chapter, of which nothing is solved; it has neither complained nor asked for anything."""

    def show(chapter):
        started.page.click("text=Forget all")
        started.page.click(f'.chapters a[href="#{chapter}"]')
        started.page.wait_for_selector(READY, timeout=READY_MS)
        return started

    yield show
    assert started.said == []
    assert started.asked == []
