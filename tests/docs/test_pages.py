"""Links of the pages lead somewhere; what is outside is not asked, but must be spelt as an address."""

import ast
import json
import re
from urllib.parse import unquote, urlsplit

import pytest

from tests.english import KINDS, LIMITS, marks
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
    monkeypatch.setattr("tests.docs.test_pages.ROOT", tmp_path / "root")
    page = tmp_path / "root" / "docs" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("# Here\n")
    page.with_name("other.md").write_text("# One `thing`, at a *time*\n\n## One thing\n\n## One thing\n")
    (tmp_path / "outside.md").touch()
    assert broken(page, target) == said


# Pages stay short: a reader finishes one at a sitting. A limit may fall; raising one needs a reason in its commit.

MOST_WORDS = {"README.md": 900, "CHANGELOG.md": 700, "docs/glossary.md": 700}
OF_FOLDERS = {"decisions": 200, "benchmarks": 750}
OTHER, ALL = 1900, 45000


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


# The linter of sentences finds what it must, and leaves plain sentences unmarked.


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


# The tour names, for each step, files and what runs in them: all of these are defined there.

ROW = re.compile(r"^\| `([\w/]+\.py)` \| ((?:`[\w.]+`(?:, )?)+) \|", re.MULTILINE)
PAGE = (ROOT / "docs" / "tour.md").read_text("utf-8")
ROWS = [(file, re.findall(r"`([\w.]+)`", names)) for file, names in ROW.findall(PAGE)]


def defined(body, prefix=""):
    """Names of classes and their methods, of functions, and of what a module assigns."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from defined(node.body, f"{prefix}{node.name}.")
        if isinstance(node, ast.Assign):
            yield from (prefix + target.id for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.parametrize(("file", "names"), ROWS, ids=[f"{file}: {', '.join(names)}" for file, names in ROWS])
def test_what_runs_is_in_its_file(file, names):
    known = set(defined(ast.parse((ROOT / file).read_text("utf-8")).body))
    assert set(names) <= known


def test_every_step_names_what_runs():
    steps = re.split(r"^## (\d+)\. .*$", PAGE, flags=re.MULTILINE)
    assert steps[1::2] == [str(number) for number in range(1, 13)]
    assert all(ROW.search(step) for step in steps[2::2])
