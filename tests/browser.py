"""Pages in a real browser, without a network: skipped where Playwright or a Chromium is not there.

The fixtures are those of ``tests/conftest.py``, once for all folders: a process can have one Playwright only.
"""

import shutil
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="pages are not opened: pip install playwright")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("pages are not opened: there is no chromium (apt install chromium)")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page that is shown, and what it said and asked for meanwhile."""

    def __init__(self, page, file: Path) -> None:
        self.page, self.asked, self.said = page, [], []
        page.route("**/*", self.answer)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.goto(file.as_uri())

    def answer(self, route):
        if route.request.url.startswith("file:"):
            return route.continue_()
        self.asked.append(route.request.url)
        return route.abort()

    def text(self, selector):
        return " ".join(self.page.locator(selector).first.inner_text().split())

    def texts(self, selector):
        return [" ".join(each.split()) for each in self.page.locator(selector).all_inner_texts()]

    def slide(self, selector, value):
        """Move a slider as a hand does."""
        self.page.locator(selector).evaluate(
            "(input, value) => { input.value = value; input.dispatchEvent(new Event('input')); }", value
        )


@pytest.fixture
def opened(browser):
    """Open a file in a window of some size; in the end no page has complained, or asked for anything."""
    shown = []

    def show(file, window=WIDE, **how):
        context = browser.new_context(viewport=window, reduced_motion="reduce", **how)
        shown.append((context, Opened(context.new_page(), file)))
        return shown[-1][1]

    yield show
    for context, page in shown:
        context.close()
        assert page.said == []
        assert page.asked == []
