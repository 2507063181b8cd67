"""Marks sentences that a reader would have to read twice (rules: CONTRIBUTING.md, Language).

python tests/english.py [KIND ...]   prints the marks of these kinds of texts, and the number of each kind
python tests/english.py --check      exit code 1 if a kind has more marks than tests/english.json allows
python tests/english.py --lower      writes numbers that have fallen as new limits

A comment with `plain-ok` on the line, or on the line above, excuses a sentence.
"""

import ast
import io
import json
import re
import sys
import tokenize

from tests.rooms import ROOT, SOURCES

LIMITS = ROOT / "tests" / "english.json"
KINDS = ("readme", "help", "errors", "pages", "docstrings", "comments")
MOST_WORDS = 25
VERB = r"(?:is|are|was|were|has|have|had|do|does|did|goes|comes|came|takes?|took|must|may|can|cannot|needs?|waits?)"
RULES = {
    "headless what": re.compile(rf"(?:^|[.;:,] |\b(?:of|by|for|with|to|and|in) )(?:[Ww]hat|[Ww]hom?) {VERB}\b"),
    "inverted start": re.compile(r"^(?:Of (?:which|these|those|each|all|its)|Whom|Whose|By which)\b"),
    "beside, behind": re.compile(r"\b(?:beside|behind)\b", re.I),
    "a program says": re.compile(r"\b(?:it|page|table|report|run|file|command|error|that) says?\b|\bsaid\b", re.I),
    "stands, lies": re.compile(r"\b(?:stands?|lies?) (?:at|in|on|there|once|here)\b"),
    ", too; alone": re.compile(r", too[.;,:)]|\balone\b"),
    "that of": re.compile(
        r"\b(?:that|those) of\b|\bof (?:its|their|our|your) own\b|\b(?:of|by|in|to) (?:which|whom)\b"
    ),
    "so many": re.compile(r"\bso (?:many|much|few)\b(?! (?:as|that)\b)"),
    "nobody": re.compile(r"\b(?:somebody|nobody|anybody)\b", re.I),
    "the same": re.compile(r"(?:^|[.;] )The same(?: (?:where|with|for|in|as|of|on|by|from)\b|[.,:;])"),
}


def marks(text):
    """(rule, sentence) of each sentence of a text that breaks a rule."""
    for sentence in re.split(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*(?=- )", text):
        flat = re.sub(r"``[^`]*``", "code", " ".join(sentence.split()))
        found = [rule for rule, pattern in RULES.items() if pattern.search(flat) and not flat.endswith("?")]
        words = len(re.findall(r"[A-Za-z]{2,}", flat))
        found += ["long"] * (words > MOST_WORDS and flat.count(",") < words / 4)  # a list of names may be longer
        yield from ((rule, flat) for rule in found)


def markdown(path):
    """(line, text) of paragraphs, list items and cells, without code, comments and addresses."""
    text = path.read_text("utf-8")
    text = re.sub(r"^```.*?^```|<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", "code", re.sub(r"\]\([^)]*\)", "]", text))
    begin, block = 1, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = line.strip()
        if block and (not bare or re.match(r"[-*|#>]|\d+\. ", bare)):
            yield begin, " ".join(block)
            block = []
        if bare.startswith("|"):
            yield from ((number, cell.strip()) for cell in bare.strip("|").split("|"))
        elif bare and (block or not line.startswith("    ")):
            begin = begin if block else number
            block.append(re.sub(r"^(?:[-*#>]+|\d+\.) ", "", bare))


def literal(node):
    """A string, with X for what an f-string fills in; "" for anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def raised(tree):
    """(line, text) of strings with spaces in ``raise`` statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            inside = {part for each in ast.walk(node) if isinstance(each, ast.JoinedStr) for part in each.values}
            strings = (each for each in ast.walk(node) if isinstance(each, ast.Constant | ast.JoinedStr))
            found = [(each.lineno, literal(each)) for each in strings if each not in inside]
            yield from ((line, text) for line, text in found if text.count(" ") > 2)


def documented(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = re.sub(
                r"^(?:>>>.*|.*(?:\S {2,}\S| \| ).*)$", "", ast.get_docstring(node) or "", flags=re.M
            )  # no diagrams
            yield from [(node.body[0].lineno, text)] if text else []


def commented(source):
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def helped():
    """(command and flag, text) of every help text."""
    from dear_mpi.cli.app import load_command
    from dear_mpi.cli.commands import all_commands

    for name in all_commands():
        command = load_command(name)
        yield name, re.sub(r"\n *\n.*|Example:.*", "", command.help or "", flags=re.S)
        yield from ((f"{name} {each.opts[0]}", each.help or "") for each in command.params if hasattr(each, "help"))


def texts(kind):
    """(place, text) of every text of a kind."""
    if kind == "help":
        yield from dict.fromkeys(helped())
    elif kind in ("readme", "pages"):
        pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("hostfiles/*.md")]
        for page in sorted(pages) if kind == "pages" else [ROOT / "README.md"]:
            if kind == "readme" or page.name != "README.md" or page.parent != ROOT:
                yield from ((f"{page.relative_to(ROOT)}:{line}", text) for line, text in markdown(page))
    else:
        for path in SOURCES.values():
            source = path.read_text("utf-8")
            lines, tree = ["", *source.splitlines()], ast.parse(source)
            found = {"errors": raised, "docstrings": documented}.get(kind, lambda tree: commented(source))  # noqa: B023
            for line, text in found(tree):
                if "plain-ok" not in "".join(lines[line - 1 : line + 1]):
                    yield f"{path.relative_to(ROOT)}:{line}", text


def found_in(kind):
    """(place, rule, sentence) of each mark."""
    return [(place, rule, sentence) for place, text in texts(kind) for rule, sentence in marks(text)]


def main():
    limits = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    shown = {*sys.argv[1:]} & {*KINDS}
    found = {kind: found_in(kind) for kind in KINDS if not shown or kind in shown}
    over = [kind for kind, each in found.items() if len(each) > limits.get(kind, len(each))]
    for kind in over if "--check" in sys.argv else shown:
        print(*(f"{place}: [{rule}] {sentence[:160]}" for place, rule, sentence in found[kind]), sep="\n")
    print("marks: " + ", ".join(f"{kind} {len(each)} of {limits.get(kind, '-')}" for kind, each in found.items()))
    if "--lower" in sys.argv:
        new = {kind: min(len(each), limits.get(kind, len(each))) for kind, each in found.items()}
        LIMITS.write_text(json.dumps(limits | new, indent=2) + "\n")
    return 1 if "--check" in sys.argv and over else 0


if __name__ == "__main__":
    sys.exit(main())
