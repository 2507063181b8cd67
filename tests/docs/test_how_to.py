"""The steps of docs/how-to/optimiser.md, taken in a copy of the project: its example is imported, and trains."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.markdown import ROOT, blocks
from tests.rooms import LAYERS

PAGE = ROOT / "docs" / "how-to" / "optimiser.md"
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


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    for layer in LAYERS:
        shutil.copytree(ROOT / layer, folder / layer, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    optimizers = folder / "kernels" / "optimizers.py"
    optimizers.write_text(optimizers.read_text().replace("\n\nOPTIMIZERS", f"\n\n{CODE[0]}\n\nOPTIMIZERS"))
    applied(CHANGES[0], folder)
    return folder


@pytest.mark.parametrize("command", COMMANDS[0].splitlines())
def test_its_commands_run(command, project):
    words = command.replace("dear-mpi", f"{sys.executable} -m dear_mpi").replace("python -c", f"{sys.executable} -c")
    environment = os.environ | {"PYTHONPATH": str(project)}
    done = subprocess.run(words, shell=True, cwd=project, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Lion(lr=0.001" in done.stdout or "test accuracy" in done.stdout
