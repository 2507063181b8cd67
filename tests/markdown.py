"""The project's pages as Markdown: their code blocks, with the comments above them, their links and their anchors."""

import re
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt

from tests.rooms import DELETED, ROOT

# docs/contrib/NAME.md and docs/benchmarks/NAME.md are an extra's, and left out where that was deleted.
OF_DELETED = {ROOT / "docs" / folder / f"{name}.md" for folder in ("contrib", "benchmarks") for name in DELETED}
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("hostfiles/*.md")} - OF_DELETED)

COMMENT = re.compile(r"<!--\s*(setup|not run:)\s*(.*?)\s*-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Code of a page.

    Attributes:
        language: what the fence says; "" without a word; "indented" without a fence.
        line: of the page, where the code begins.
        setup: Python that the page does not show, from a comment above: it gives names that the code takes.
        not_run: why it is not to be run, from a comment above.
    """

    language: str
    code: str
    line: int
    setup: str = ""
    not_run: str = ""


@cache
def tokens(page):
    return MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8"))


def blocks(page):
    """The blocks of code of a page, from top to bottom."""
    said = {}
    for token in tokens(page):
        if token.type == "html_block":
            said |= dict(COMMENT.findall(token.content))
        elif token.type in ("fence", "code_block"):
            language = "indented" if token.type == "code_block" else token.info.strip()
            line = token.map[0] + 1 + (token.type == "fence")
            yield Block(language, token.content, line, said.get("setup", ""), said.get("not run:", ""))
            said = {}
        elif token.type == "inline":
            said = {}


def inlines(page):
    """(line, token) of each piece of running text."""
    for token in tokens(page):
        for child in token.children or ():
            yield token.map[0] + 1, child


def links(page):
    """(line, target) of each link and picture."""
    for line, token in inlines(page):
        if token.type in ("link_open", "image"):
            yield line, token.attrs["src" if token.type == "image" else "href"]


def anchors(page):
    found = []
    for heading, text in zip(tokens(page), tokens(page)[1:], strict=False):
        if heading.type == "heading_open":
            words = "".join(child.content for child in text.children if child.type in ("text", "code_inline"))
            name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            earlier = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", other) is not None for other in found)
            found.append(f"{name}-{earlier}" if earlier else name)
    return found
