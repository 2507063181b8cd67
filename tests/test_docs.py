"""Every file and every make target that a text names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("hostfiles/*.md")])

# In `backquotes` or as the target of a [link](...): something with an extension that we use, or a folder of ours.
EXTENSIONS = "py|md|cu|cuh|toml|json|env|svg|png|sh|yaml|yml"
NAMED = re.compile(rf"[`(]((?:[\w.-]+/)*[\w.-]+\.(?:{EXTENSIONS})|(?:[\w.-]+/)+)(?:#[\w-]*)?[`)]")
LINKED = re.compile(r"\]\((?!https?:|mailto:|#)([^)#]+)")
# Names of the reader's own files, not of ours.
EXAMPLES = re.compile(r"(.*/)?([A-Z_]+|my_\w+|out|result\w*|timeline\w*|trace\w*)\.\w+$|\.venv/.*")


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
