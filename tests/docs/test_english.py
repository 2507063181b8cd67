"""The linter of sentences finds what it must, and leaves plain sentences unmarked."""

import json

import pytest

from tests.english import KINDS, LIMITS, markdown, marks


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("What differs from launch to launch it does not see.", None),
        ("Who is late waits. What was sent is used later.", "headless what"),
        ("Whom iterations wait for is printed.", "inverted start"),
        ("Times of ours stand beside MPI's.", "beside, behind"),
        ("It says no rate.", "a program says"),
        ("Rank 0 alone prints.", ", too; alone"),
        ("The link is faster than that of rank 0.", "that of"),
        ("It takes so many calls.", "so many"),
        ("Nobody can see it.", "nobody"),
        ("The same where ranks share cores.", "the same"),
        (" ".join(["word"] * 26), "long"),
        (", ".join(["word"] * 40), None),
        ("Rank 0 prints after 4 calls; see what links do.", None),
    ],
)
def test_sentences_are_marked(sentence, rule):
    assert {found for found, _ in marks(sentence)} == ({rule} if rule else set())


def test_code_and_addresses_of_a_page_are_no_sentences(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One\n\n```\nbeside\n```\n\n- two `beside` [three](beside.md)\n  four\n\n    beside\n\n| a | b |\n"
    )
    assert list(markdown(page)) == [(1, "One"), (7, "two code [three] four"), (12, "a"), (12, "b")]


def test_there_is_a_limit_for_every_kind():
    assert set(json.loads(LIMITS.read_text())) == {*KINDS}
    assert not {json.loads(LIMITS.read_text())[kind] for kind in ("readme", "help", "errors")} - {0}
