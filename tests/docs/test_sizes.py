"""Pages stay short: a reader finishes one at a sitting. A limit may fall; raising one needs a reason in its commit."""

import pytest

from tests.markdown import PAGES, ROOT

MOST_WORDS = {"README.md": 900, "CHANGELOG.md": 700, "docs/glossary.md": 700}
OF_FOLDERS = {"decisions": 200, "benchmarks": 750}
OTHER, ALL = 1900, 46000


def words(page):
    """Words with signs between spaces, as ``wc -w`` counts them."""
    return len(page.read_text("utf-8").split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_keeps_to_its_length(page):
    assert words(page) <= MOST_WORDS.get(str(page.relative_to(ROOT)), OF_FOLDERS.get(page.parent.name, OTHER))


def test_all_pages_keep_to_their_length():
    assert sum(map(words, PAGES)) <= ALL


def test_the_glossary_has_words_of_users_only():
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) <= 80
