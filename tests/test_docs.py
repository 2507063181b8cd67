"""Files and make targets that a text, a docstring or a comment names exist, and the table of algorithms is right."""

import ast
import re
import tokenize

import pytest

from dear_mpi.collectives import ALGORITHMS, programs
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.program.verify import keeps_rank_order
from tests.rooms import DELETED, EXTRAS, LAYERS, ROOT

CODE = sorted(
    path
    for folder in (*LAYERS, "tests", "docs/benchmarks", "docs/pictures", "docs/site")
    for path in (ROOT / folder).rglob("*.*")
    if path.suffix in (".py", ".cu", ".cuh") and path.resolve() == path
)
TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("hostfiles/*.md")])

# Anything with an extension that we use, wherever it stands; a folder in `backquotes`; the target of a [link](...).
EXTENSIONS = "py|md|cu|cuh|toml|json|env|svg|png|sh|yaml|yml|h"
FILE = re.compile(rf"(?<![\w/.:-])((?:[\w.-]+/)*[\w.-]+\.(?:{EXTENSIONS}))(?![\w/])")
FOLDER = re.compile(r"`((?:[\w.-]+/)+)`")
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#]+)")
# Names of the reader's own files, and one that many folders have.
EXAMPLES = re.compile(
    r"(.*/)?(FILE|NAME|mine|lazy|lion|script|train|wrong|prove|use|ten_lines|my_\w+|out|result\w*|timeline\w*|trace\w*|before\d?|after\d?|both|__init__)\.\w+$"
    r"|([AB]|run|rules)\.json$|(ring|steps|plot)\.png$|\.venv/.*|calm_schedules/.*|.*contrib/NAME/"
)


def exists(name, text):
    """A path from the root, from the text, or from a room on; docs/algorithms.md is about one folder of ours."""
    folders = [ROOT, text.parent, *(ROOT / layer for layer in LAYERS if "/" in name)]
    if text == ROOT / "docs" / "algorithms.md":
        folders.append(ROOT / "collectives" / "algorithms")
    return any((folder / name).exists() for folder in folders) or is_of_deleted(name)


def is_of_deleted(name):
    """Whether a path leads into an extra that was deleted, or to all of them, if all were."""
    extra = name.partition("contrib/")[2].partition("/")[0]
    return extra in DELETED or ("contrib/" in name and DELETED == EXTRAS)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: str(text.relative_to(ROOT)))
def test_named_files_exist(text):
    content = text.read_text(encoding="utf-8")
    names = {name.strip() for pattern in (FILE, FOLDER, LINK) for name in pattern.findall(content)}
    missing = sorted(name for name in names if not EXAMPLES.match(name) and not exists(name, text))
    assert not missing, f"{text.name} names files that are not there: {missing}"


def said(path):
    """The docstrings and comments of a Python file; all of another one."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return content
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) for node in ast.walk(ast.parse(content)) if isinstance(node, documented)]
    with tokenize.open(path) as file:
        comments = [token.string for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT]
    return "\n".join([*filter(None, docstrings), *comments])


def is_near(name, path):
    """A path from the folder of the code or from one above it, as far as the root; CUDA sources have one folder."""
    above = [folder for folder in path.parents if folder.is_relative_to(ROOT)]
    return any((folder / name).exists() for folder in (*above, ROOT / "kernels" / "cuda")) or is_of_deleted(name)


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_named_in_docstrings_and_comments_exist(path):
    missing = sorted(name for name in FILE.findall(said(path)) if not EXAMPLES.match(name) and not is_near(name, path))
    assert not missing, f"{path} names files that are not there: {missing}; give the path from a folder above"


@pytest.mark.parametrize(("name", "found"), [
    ("plan.py", True),
    ("runners/messages.py", True),
    ("transports/agree.py", True),
    ("collectives/transports/agree.py", True),
    ("agree.py", False),
    ("execute.py", False),
    ("plans/agree.py", False),
])  # fmt: skip
def test_a_name_that_is_out_of_date_is_found(name, found):
    assert FILE.findall(f"see ``{name}``, and ({name}).") == [name, name]
    assert is_near(name, ROOT / "collectives" / "plans" / "make_plan.py") == found


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: str(text.relative_to(ROOT)))
def test_named_make_targets_exist(text):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^\s*)make ([a-z][a-z-]*)\b(?!=)", text.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets, f"{text.name} names make targets that are not there: {sorted(named - targets)}"


def algorithm_rows():
    """The rows of the tables of docs/algorithms.md: the first cell is the algorithm's file, or its name without one."""
    lines = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    return [
        (row[0].strip("`").removesuffix(".py"), *row[1:])
        for row in cells
        if row[0].endswith(".py`") or row[0].strip("`") in ALGORITHMS
    ]


def test_every_algorithm_is_in_both_tables():
    names = [name for name, *_ in algorithm_rows()]
    assert sorted(names) == sorted([*ALGORITHMS, *ALGORITHMS])


THREE = "all_reduce, reduce_scatter, all_gather"


@pytest.mark.parametrize("row", [row for row in algorithm_rows() if len(row) == 5], ids=lambda row: row[0])
def test_the_table_of_algorithms_is_right(row):
    """Which collectives each serves, and whether it combines in rank order (``collectives/test_invariance.py``)."""
    name, serves, _, _, invariant = row
    rooted = f"{THREE}, broadcast, reduce"
    groups = {"all six": ", ".join(COLLECTIVES), "the same three": THREE, "the same three and rooted ones": rooted}
    told = groups.get(serves, serves)
    assert {word for word in COLLECTIVES if word in re.split(r"\W+", told)} == set(ALGORITHMS[name])
    reducing = [collective for collective in ALGORITHMS[name] if COLLECTIVES[collective].reduces]
    kept = {
        size: all(keeps_rank_order(programs(name, collective, size)) for collective in reducing)
        for size in (1, 2, 3, 5, 7, 8, 12, 16)
    }
    assert invariant in ("all", "run, schedule", "run, schedule; all where P is a power of two")
    for size, keeps in kept.items():
        assert keeps if invariant == "all" else not keeps or size < 5


def test_no_table_shows_dear_eager_slower_than_dear():
    """With the same buckets; ``docs/schedules.md`` excludes it."""
    page = (ROOT / "docs" / "will-dear-help-me.md").read_text("utf-8")
    rows = re.findall(r"^ (dear|dear-eager) +(?:(\S+) +\d+ +)?([\d.]+) +[\d.]+ +[\d.]+ ", page, re.MULTILINE)
    assert len(rows) == 4
    for (dear, fusion, seconds), (eager, same, fewer) in zip(rows[::2], rows[1::2], strict=True):
        assert (dear, eager, fusion) == ("dear", "dear-eager", same)
        assert float(fewer) <= float(seconds)
