"""The page of ``explain --html``: it is opened, played, and does what its buttons and sliders say."""

from pathlib import Path

import pytest

from tests.cli_checks import invoke
from tests.see.test_explain import RING_THAT_BREAKS

MY_RING = Path(__file__).parents[3] / "docs/lecture/cells/ring.py"


@pytest.fixture
def explained(tmp_path):
    """The page of a command, which ends with this exit code."""

    def explain(algorithm="ring", ranks=4, *flags, code=0):
        file = tmp_path / "page.html"
        words = ("explain", "--algorithm", algorithm, "--ranks", ranks, "--html", file, *flags)
        result = invoke(*words)
        assert result.exit_code == code, result.output
        return file

    return explain


def test_steps_are_told_and_drawn(explained, opened):
    page = opened(explained())
    assert "At first: Every rank has numbers of its own" in page.text(".said")
    page.page.click("text=Step ▶")
    assert page.text(".said").startswith("Step 0: every rank sends to its successor. So rank 0 sends chunk 3 to rank 1")
    assert page.page.locator(".arrows path.added:not(.head)").count() == 4
    assert "Why step 0?" in page.text(".why")
    assert "the proof finds: “rank 0: chunk" in page.text(".why")
    page.page.keyboard.press("End")
    assert "after step 5" in page.text(".where")
    assert page.text(".said").endswith("Now every rank has all that it shall have.")
    assert page.page.locator(".bar.complete").count() == 16
    page.page.keyboard.press("ArrowLeft")
    assert "after step 4" in page.text(".where")
    page.page.click("text=◀ Back")
    page.page.keyboard.press("Home")
    assert "at first" in page.text(".where")


def figure(page, name, column=0):
    row = page.page.locator(".results tbody tr", has=page.page.locator(f"th:text-is('{name}')"))
    return row.locator("td").nth(column).inner_text()


def test_sliders_do_what_they_say(explained, opened):
    page = opened(explained())
    assert figure(page, "time") == "5.47 ms"
    assert figure(page, "the busiest rank sends") == "6 MiB"
    page.slide("#bytes", 10)
    assert page.text("output[for=bytes]") == "1 KiB"
    assert figure(page, "the busiest rank sends") == "1.5 KiB"
    page.slide("#ranks", 0)
    assert page.text(".side h2") == "ring on 2 ranks"
    assert page.page.locator(".board .rank").count() == 2
    assert figure(page, "the busiest rank sends") == "1 KiB"
    page.slide("#ranks", 14)
    assert page.page.locator(".board .rank").count() == 16


@pytest.mark.parametrize(("wrong", "where", "said", "bars"), [
    ("Step(wrong.sends, ())", "step 1 fails", "rank 0, step 1: waits forever", 0),
    ("Step(wrong.sends, (replace(wrong.receives[0], combine=False),))", "after step 5", "chunk 0 ends with", 1),
], ids=["blocked", "end"])  # fmt: skip
def test_a_wrong_program_opens_where_it_breaks(wrong, where, said, bars, explained, opened, tmp_path):
    (tmp_path / "mine.py").write_text(RING_THAT_BREAKS.format(step=1, wrong=wrong))
    page = opened(explained(f"{tmp_path}/mine.py:all_reduce", code=2))
    assert page.text(".where") == where
    assert said in page.text(".fault")
    cards = page.page.locator(".board .rank")
    assert [number for number in range(4) if "failed" in cards.nth(number).get_attribute("class")] == [0]
    assert page.page.locator(".bar.wrong").count() == bars
    page.page.click("text=◀ Back")
    assert page.page.locator(".failed").count() == 0
