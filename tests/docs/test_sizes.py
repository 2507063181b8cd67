"""Pages stay short: a reader finishes one at a sitting. A limit may fall; raising one needs a reason in its commit."""

import pytest

from tests.markdown import PAGES, ROOT

MOST_WORDS = {"CHANGELOG.md": 1800, "docs/bench.md": 2100, "docs/variants.md": 2200}
DECISION, OTHER = 200, 1900


def most(page):
    """Words with signs between spaces, as ``wc -w`` counts them."""
    return DECISION if page.parent.name == "decisions" else MOST_WORDS.get(str(page.relative_to(ROOT)), OTHER)


# Pages of measurements are as long as their tables.
WRITTEN = [page for page in PAGES if page.parent.name != "benchmarks"]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_keeps_to_its_length(page):
    assert len(page.read_text("utf-8").split()) <= most(page)


def test_the_glossary_has_words_of_users_only():
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) <= 80
