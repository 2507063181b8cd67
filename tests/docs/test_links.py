"""Links of the pages lead somewhere; what is outside is not asked, but must be spelt as an address."""

import re
from urllib.parse import unquote, urlsplit

import pytest

from tests.markdown import PAGES, ROOT, anchors, links


def broken(page, target):
    address = urlsplit(target)
    if address.scheme:
        known = address.scheme in ("http", "https") and re.fullmatch(r"[\w-]+(\.[\w-]+)+", address.netloc)
        return None if known or address.scheme == "mailto" else "is no address"
    file = (page.parent / unquote(address.path)).resolve() if address.path else page
    if not file.exists():
        return "is not there"
    if not file.is_relative_to(ROOT):
        return "is outside of the project"
    if address.fragment and (file.suffix != ".md" or address.fragment not in anchors(file)):
        return "is no heading there"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    wrong = [f"line {line}: {target} {broken(page, target)}" for line, target in links(page) if broken(page, target)]
    assert not wrong


@pytest.mark.parametrize(("target", "said"), [
    ("other.md", None),
    ("other.md#one-thing-at-a-time", None),
    ("other.md#one-thing-1", None),
    ("#here", None),
    ("https://example.org/a?b#c", None),
    ("other.md#two", "is no heading there"),
    ("gone.md", "is not there"),
    ("https://", "is no address"),
    ("../../outside.md", "is outside of the project"),
])  # fmt: skip
def test_a_link_that_leads_nowhere_is_found(target, said, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.docs.test_links.ROOT", tmp_path / "root")
    page = tmp_path / "root" / "docs" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("# Here\n")
    page.with_name("other.md").write_text("# One `thing`, at a *time*\n\n## One thing\n\n## One thing\n")
    (tmp_path / "outside.md").touch()
    assert broken(page, target) == said
