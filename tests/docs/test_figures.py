"""Figures that pages quote from a page of measurements are those of its rows.

Behind a quoted figure a page names the row, in a comment that no reader sees:

    1036 ms with equal shares, 533 ms <!-- from docs/benchmarks/variants.md: --weights measured --> with `measured`

Each number of the clause before it must be in that row, once for each time, or be rounded from there. A row is given by
what its line contains; headings or rows above it may come first, with " / " between them. [2] at the end: the numbers
are those of the row from its second one on, for rows in which a wrong digit could pass for another number. A sentence
or row of a table that links to a page of measurements and has figures needs such a comment. Figures without a link are
not looked at, nor are the clauses before the last one.
"""

import re
from decimal import Decimal
from itertools import zip_longest

import pytest

from docs.benchmarks.provenance import rows_file
from tests.markdown import PAGES, ROOT

MEASURED = ROOT / "docs" / "benchmarks"
HISTORY = ("decisions", "CHANGELOG.md")  # have what was measured then
QUOTING = [
    page
    for page in PAGES
    if (MEASURED not in page.parents or page.name == "README.md") and not {page.parent.name, page.name} & {*HISTORY}
]
FROM = re.compile(r"<!-- from (?:(?:docs/|\.\./)?benchmarks/)?([\w-]+\.md): (.*?)(?: \[(\d+)\])? -->")
NUMBER = re.compile(r"(?<![\w.-])[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?=x?(?![\w.]*\w))")
CLAUSE = re.compile(r"(?:^|[.;:|]\s|-->)(?!.*(?:[.;:|]\s|-->))", re.DOTALL)  # the last border
HIDDEN = re.compile(r"`[^`]*`|\]\([^)]*\)")
LINK = re.compile(r"\]\((?:\.\./)*(?:docs/)?benchmarks/(?!README)")
FIGURE = re.compile(r"\d\.\d|\d ?%|\d of \d|\d (?:ms|us|s)\b")


def numbers(text):
    """The numbers in words that are no code and no address, with their places."""
    return list(NUMBER.finditer(HIDDEN.sub(lambda found: " " * len(found[0]), text)))


def row_of(name, path):
    """The line of a page of measurements, or else of the file of all its rows; "" if neither has it."""
    for file in (MEASURED / name, rows_file(MEASURED / name)):
        lines = file.read_text("utf-8").splitlines() if file.is_file() else []
        for part in path.split(" / "):
            lines = lines[next((at for at, line in enumerate(lines) if part in line), len(lines)) :]
        if lines:
            return lines[0]
    return ""


def missing(given, row, first):
    """The numbers that a row does not have; ``first``: where it must have them, or None."""
    there = [Decimal(each[0]) for each in NUMBER.finditer(row)]
    if first:
        pairs = zip_longest(given, there[int(first) - 1 :][: len(given)])
        return [each for each, due in pairs if due is None or due.quantize(Decimal(each)) != Decimal(each)]
    for each in given:
        found = next((due for due in there if due.quantize(Decimal(each)) == Decimal(each)), None)
        if found is None:
            return [each]
        there.remove(found)
    return []


def quoted(text):
    """Each comment, where the clause before it begins, and the clause."""
    for found in FROM.finditer(text):
        begin = max(text.rfind("\n\n", 0, found.start()), 0)
        begin += CLAUSE.search(text[begin : found.start()]).end()
        yield found, begin, text[begin : found.start()]


def faults(text):
    """What is wrong with the quoted figures of a page."""
    for found, _, clause in quoted(text):
        name, path, first = found.groups()
        given = [each[0] for each in numbers(clause)]
        if wrong := missing(given, row_of(name, path), first) if given else ["no figure"]:
            yield f"{found[0]}: {', '.join(wrong)} in {clause.strip()!r}, and its row is {row_of(name, path)!r}"
    for sentence in re.split(r"\n\n|\n(?=\||- )|(?<=\.)\s+(?=[A-Z\[])", text):
        if LINK.search(sentence) and FIGURE.search(HIDDEN.sub("", sentence)) and not FROM.search(sentence):
            yield f"name the rows of these figures: {sentence!r}"


@pytest.mark.parametrize("page", QUOTING, ids=lambda page: str(page.relative_to(ROOT)))
def test_quoted_figures_are_those_of_their_rows(page):
    text = page.read_text("utf-8")
    assert not (found := list(faults(text))), "\n".join(found)
    for _, begin, clause in quoted(text):  # and a wrong digit is found, whichever it is
        for number in numbers(clause):
            for place in (begin + number.start() + at for at, sign in enumerate(number[0]) if sign.isdigit()):
                for digit in {*"0123456789"} - {text[place]}:
                    planted = text[:place] + digit + text[place + 1 :]
                    assert list(faults(planted)), f"{digit} at {text[place - 20 : place]!r} passes: give the place, [N]"


def test_figures_without_a_row_are_found():
    assert list(faults("It took 1.25 times as long ([ddp](benchmarks/ddp.md)).")) != []
    assert list(faults("0.5 <!-- from benchmarks/variants.md: no such row -->")) != []
    assert list(faults("It gains <!-- from benchmarks/variants.md: muon --> nothing.")) != []
    assert len([page for page in QUOTING if list(quoted(page.read_text("utf-8")))]) > 2
