"""Every file and every make target that a text names exists, and the table of algorithms is right."""

import re
from pathlib import Path

import pytest

from dear_mpi.collectives import ALGORITHMS, programs
from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.verify import keeps_rank_order

ROOT = Path(__file__).resolve().parent.parent
TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("hostfiles/*.md")])

# In `backquotes` or as the target of a [link](...): something with an extension that we use, or a folder of ours.
EXTENSIONS = "py|md|cu|cuh|toml|json|env|svg|png|sh|yaml|yml"
NAMED = re.compile(rf"[`(]((?:[\w.-]+/)*[\w.-]+\.(?:{EXTENSIONS})|(?:[\w.-]+/)+)(?:#[\w-]*)?[`)]")
LINKED = re.compile(r"\]\((?!https?:|mailto:|#)([^)#]+)")
# Names of the reader's own files, not of ours.
EXAMPLES = re.compile(r"(.*/)?([A-Z_]+|mine|wrong|my_\w+|out|result\w*|timeline\w*|trace\w*)\.\w+$|\.venv/.*")


def exists(name, text):
    """Relative to the text, to the root, or the bare name of a file somewhere in the packages or the tests."""
    if (text.parent / name).exists() or (ROOT / name).exists() or (ROOT / "dear_mpi" / name).exists():
        return True
    folders = ["dear_mpi", "collectives", "kernels", "tests", "docs", "hostfiles"]
    return "/" not in name and any(any((ROOT / folder).rglob(name)) for folder in folders)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: str(text.relative_to(ROOT)))
def test_named_files_exist(text):
    content = text.read_text(encoding="utf-8")
    names = {match.strip() for match in NAMED.findall(content) + LINKED.findall(content)}
    missing = sorted(name for name in names if not EXAMPLES.match(name) and not exists(name, text))
    assert not missing, f"{text.name} names files that are not there: {missing}"


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: str(text.relative_to(ROOT)))
def test_named_make_targets_exist(text):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^\s*)make ([a-z][a-z-]*)\b(?!=)", text.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets, f"{text.name} names make targets that are not there: {sorted(named - targets)}"


def algorithm_rows():
    """The rows of the tables of docs/algorithms.md that begin with a file."""
    lines = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    return [(row[0].strip("`").removesuffix(".py"), *row[1:]) for row in cells if row[0].endswith(".py`")]


def test_every_algorithm_is_in_both_tables():
    names = [name for name, *_ in algorithm_rows()]
    assert sorted(names) == sorted([*ALGORITHMS, *ALGORITHMS])


THREE = "all_reduce, reduce_scatter, all_gather"


@pytest.mark.parametrize("row", [row for row in algorithm_rows() if len(row) == 5], ids=lambda row: row[0])
def test_the_table_of_algorithms_is_right(row):
    """Which collectives each serves, and whether it combines in rank order."""
    name, serves, _, _, order = row
    told = {"all five": ", ".join(COLLECTIVES), "the same three": THREE}.get(serves, serves)
    assert {word for word in COLLECTIVES if word in re.split(r"\W+", told)} == set(ALGORITHMS[name])
    reducing = [collective for collective in ALGORITHMS[name] if COLLECTIVES[collective].reduces]
    kept = {
        size: all(keeps_rank_order(programs(name, collective, size)) for collective in reducing)
        for size in (1, 2, 3, 5, 7, 8, 12, 16)
    }
    assert order in ("yes", "no", "if P is even")
    for size, keeps in kept.items():
        if order == "yes" or (order != "no" and size % 2 == 0):
            assert keeps
        elif size >= 5:
            assert not keeps
