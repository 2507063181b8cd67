"""Pages of docs/ that teach by an example: its file, and its commands."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from dear_mpi.cli.app import app

DOCS = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True)
class Page:
    """A page with Python files, mostly one, and indented commands."""

    text: str

    @classmethod
    def of(cls, name):
        return cls((DOCS / name).read_text("utf-8"))

    @property
    def blocks(self):
        return re.findall(r"```python\n(.*?)```", self.text, re.DOTALL)

    @property
    def code(self):
        (block,) = self.blocks
        return block

    @property
    def commands(self):
        """(ranks, what follows them) of each ``mpirun -n RANKS dear-mpi ...``."""
        found = re.findall(r"^    mpirun -n (\d+) dear-mpi (.*)$", self.text, re.MULTILINE)
        assert found, "the page has no commands"
        return found

    def shows(self, said):
        """Whether it has these words, wherever its lines end."""
        return " ".join(said.split()) in " ".join(self.text.split())


def output_of(ranks, command):
    """What a command of a page prints, with threads as ranks."""
    wide = {"COLUMNS": "200"}  # folds no name, however long the figures of a busy machine are
    done = CliRunner().invoke(app, [*shlex.split(command), "--threads", ranks], env=wide)
    assert done.exit_code == 0, done.output
    return done.output
