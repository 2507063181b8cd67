"""The page of ``simulate --html``: lanes, and sliders that choose among predictions."""

import json

import pytest

from tests.cli_checks import succeed
from tests.contrib.pages.test_lanes_page import SMALL


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "small.json").write_text(json.dumps(SMALL))
    words = ("simulate", "--model", f"synthetic:{folder}/small.json", "--ranks", "4", "--network", "1gbit,50us")
    more = ("--fusion", "none", "--schedules", "wfbp,dear", "--forward-time", "0.01", "--html")
    succeed(*words, *more, folder / "page.html")
    return folder / "page.html"


def heads(page):
    return page.page.locator(".run-name").all_text_contents()


def test_lanes_of_all_schedules_are_on_one_axis(file, opened):
    page = opened(file)
    assert [text.partition(":")[0] for text in heads(page)] == ["wfbp", "dear"]
    assert page.page.locator(".lanes svg").count() == 1
    assert page.page.locator(".lanes line.bound").count() == 2
    assert page.page.locator(".results tbody tr").count() == 2
    assert "compute waits: exposed" in page.text(".legend")


def test_sliders_choose_a_prediction(file, opened):
    page = opened(file)
    given = heads(page)
    page.slide("#bandwidth", 4)
    assert page.text("output[for=bandwidth]") == "4 Gbit/s"
    faster = heads(page)
    assert faster != given
    page.slide("#latency", 2)
    assert page.text("output[for=latency]") == "200 us"
    assert heads(page) != faster
    page.slide("#bandwidth", 2)
    page.slide("#latency", 1)
    assert heads(page) == given, "back again"
    page.slide("#buckets", 5)
    assert page.text("output[for=buckets]") == "100MB"
    assert heads(page) != given
    wide = page.page.locator(".lanes svg").bounding_box()["width"]
    page.slide("#zoom", 4)
    assert page.page.locator(".lanes svg").bounding_box()["width"] == pytest.approx(4 * wide, rel=0.01)
