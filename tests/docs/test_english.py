"""The linter of sentences finds what it must, and leaves plain sentences unmarked."""

import json

import pytest

from tests.english import KINDS, LIMITS, marks


@pytest.mark.parametrize(("sentence", "rule"), [
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
])  # fmt: skip
def test_sentences_are_marked(sentence, rule):
    assert {found for found, _ in marks(sentence)} == ({rule} if rule else set())


def test_there_is_a_limit_for_every_kind():
    assert set(json.loads(LIMITS.read_text())) == {*KINDS}
    assert not {json.loads(LIMITS.read_text())[kind] for kind in ("readme", "help", "errors")} - {0}
