"""The steps of docs/how-to/extend.md, taken in a copy of the project: its example is imported,
trains, and breaks no rule of the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.markdown import ROOT, blocks
from tests.rooms import LAYERS

PAGE = ROOT / "docs" / "how-to" / "extend.md"
CODE, CHANGES, COMMANDS = (
    [block.code for block in blocks(PAGE) if block.language == language] for language in ("python", "diff", "bash")
)


def applied(change, folder):
    """Make the changes of a block like a diff, without numbers of lines."""
    for part in re.split("^--- ", change, flags=re.MULTILINE)[1:]:
        name, _, hunks = part.partition("\n")
        for hunk in hunks.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
            text = (folder / name).read_text()
            assert text.count(old) == 1, f"{name} does not have once\n{old}"
            (folder / name).write_text(text.replace(old, new))


GATES = ("tests/test_style.py", "tests/test_layering.py", "tests/test_algorithm_names.py")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project in which the page was followed."""
    folder = tmp_path_factory.mktemp("project")
    for name in (*LAYERS, "tests", "docs", "hostfiles"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("*.py"), *ROOT.glob("*.yml"), ROOT / "Makefile"):
        shutil.copy(file, folder)
    file, start = folder / "kernels" / "optimizers.py", CODE[0].index("@dataclass")
    table = "OPTIMIZERS: dict"
    file.write_text(file.read_text().replace(table, f"{CODE[0][start:].rstrip()}\n\n\n{table}"))
    applied(CHANGES[0], folder)
    return folder


def run(words, project):
    environment = os.environ | {"PYTHONPATH": str(project)}
    how = {"cwd": project, "env": environment, "capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(words, shell=True, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS[0].splitlines())
def test_its_commands_run(command, project):
    words = command.replace("dear-mpi", f"{sys.executable} -m dear_mpi").replace("python -c", f"{sys.executable} -c")
    said = run(words, project)
    assert "Lion(lr=0.001" in said or "test accuracy" in said


def test_the_gates_hold_after_the_page_was_followed(project):
    """The limits of the style, the order of rooms, and this file: what the page quotes is still there."""
    limits = "tests/rooms.py --limit kernels"
    assert f"`python {limits}`" in PAGE.read_text("utf-8")
    run(f"{sys.executable} {limits}", project)
    run(f"{sys.executable} -m pytest -q -p no:cacheprovider {' '.join(GATES)}", project)
    run(f"{sys.executable} -m pytest -q -p no:cacheprovider {Path(__file__).relative_to(ROOT)} -k commands", project)
    run(f"{sys.executable} -m ruff check --no-cache kernels dear_mpi/training", project)
    run(f"{sys.executable} -m ruff format --no-cache --check kernels dear_mpi/training", project)
