"""Runs every command and every program of the pages, as they are written, but for less time: `make docs`.

What a page has its reader run is run from top to bottom in one folder of the page, hence in one process. The rules are
in tests/docs/commands.py; what is not run says why.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.commands import SMALL, tasks
from tests.launch import ended, mpis_at_hand
from tests.markdown import PAGES, ROOT

LIMIT_S = 600
# Written by commands of their own, which took longer.
GENERATED = ("docs/benchmarks", "docs/decisions", "CHANGELOG.md")


def read():
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        if not name.startswith(GENERATED):
            yield name, *tasks(page)


LEFT_OUT = {}  # by page: why something there was not run, which may have written a file for what follows
READ = {name: (found, files) for name, found, files in read()}
EACH = [
    pytest.param(name, task, id=f"{name}:{task.line}: {task.name}")
    for name, (found, _) in READ.items()
    for task in found
]


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """The folder of each page: what its reader has before him."""
    made = {}

    def folder(page):
        if page not in made:
            made[page] = tmp_path_factory.mktemp("page")
            shutil.copy(ROOT / "README.md", made[page])
            shutil.copytree(ROOT / "docs", made[page] / "docs")  # into which a command may write
            (made[page] / "small.json").write_text(json.dumps(SMALL))
            for name, code in READ[page][1].items():
                (made[page] / name).write_text(code)
        return made[page]

    return folder


@pytest.mark.parametrize(("page", "task"), EACH)
def test_what_a_page_says_can_be_done(page, task, folders):
    missing = [name for name in task.needs if importlib.util.find_spec(name) is None]
    folder = folders(page)
    if task.not_run or missing:
        LEFT_OUT[page] = task.not_run or f"it needs {', '.join(missing)}"
        pytest.skip(LEFT_OUT[page])
    code, said = done(task.command, folder)
    if code == 2 and "No such file" in said and page in LEFT_OUT:
        pytest.skip(f"its file is written by what was left out above: {LEFT_OUT[page]}")
    shown = [] if task.shown is None else [squeezed(line) for line in task.shown if line.strip() not in ("", "...")]
    if code == 3 and "bench-diff" in task.command:
        return  # such short runs may tell nothing
    assert code == (2 if any(line.startswith("error: ") for line in shown) else 0), said
    assert "Traceback" not in said
    rest = squeezed(said)  # lines are cut for a terminal
    for line in shown:
        _, found, rest = rest.partition(line)
        assert found, f"the page shows {line!r}, and the command said\n{said}"


def squeezed(line):
    return " ".join(line.split())


def done(command, folder):
    """The exit code of a command, and all that it said."""
    if not mpis_at_hand() and "mpirun" in command:
        pytest.skip("there is no mpirun")
    ranks = re.search(r"mpirun -n (\d+)", command)
    environment = mpis_at_hand()[0].environment(int(ranks[1])) if ranks else dict(os.environ)
    programs = [Path(sys.executable).parent, *(Path(mpi.mpirun[0]).parent for mpi in mpis_at_hand()[:1])]
    environment |= {"PATH": os.pathsep.join([*map(str, programs), environment["PATH"]]), "PYTHONPATH": str(ROOT)}
    environment |= {"NO_COLOR": "1", "COLUMNS": "200"}
    with (folder / "said").open("w+") as said:
        job = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=environment, stdout=said, stderr=said, stdin=subprocess.DEVNULL
        )
        with ended(job):
            code = job.wait(LIMIT_S)
        said.seek(0)
        return code, said.read()
