"""The commands of the pages are read as the command line reads them: each flag is there. `make docs` runs them."""

import re

import pytest

from dear_mpi.cli.app import load_command
from dear_mpi.cli.commands import all_commands
from tests.docs.commands import commands, tasks, words
from tests.markdown import PAGES, ROOT, Block, inlines
from tests.rooms import DELETED

COMMANDS = {name: load_command(name) for name in all_commands()}
READ = [(page, task) for page in PAGES for task in tasks(page)[0] if "dear-mpi " in task.name]


@pytest.mark.parametrize(("page", "task"), READ, ids=[f"{page.relative_to(ROOT)}:{task.line}" for page, task in READ])
def test_flags_of_the_pages_are_there(page, task):
    name, *flags = words(task.name)
    if name not in COMMANDS and DELETED:
        pytest.skip("it is a command of an extra that was deleted")
    try:
        COMMANDS[name].make_context(name, flags)
    except Exception as error:
        if not DELETED or type(error).__name__ != "NoSuchOption":
            raise
        pytest.skip(f"{error}: it is a flag of an extra that was deleted")


# Of mpirun, srun, pip and chrt, and of our own scripts in tests/.
OTHERS = {"--bind-to", "--cpus-per-task", "--editable", "--exclusive", "--hostfile", "--map-by", "--mpi", "--rr"}
OTHERS |= {"--limit", "--ntasks-per-node", "--oversubscribe", "--kills"}
OTHERS |= {"--no-kill", "--only", "--only-mpi", "--whole", "--with-ft", "--with-mpi"}


HISTORY = {"CHANGELOG.md", "decisions"}  # also name what is no more
NOW = [page for page in PAGES if not {page.name, page.parent.name} & HISTORY]


@pytest.mark.parametrize("page", NOW, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_and_commands_in_the_text_are_there(page):
    """A flag in running text may be of any command."""
    if DELETED:
        pytest.skip("extras were deleted, which have some")
    known = {spelled for each in COMMANDS.values() for flag in each.params for spelled in flag.opts}
    texts = [token.content for _, token in inlines(page) if token.type == "code_inline"]
    flags = {flag for text in texts for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", text)}
    assert flags <= known | OTHERS | {"--help", "--version"}
    assert {name for text in texts for name in re.findall(r"\bdear-mpi ([a-z][a-z-]*)", text)} <= set(COMMANDS)


def said(code, **how):
    return [(task.command, task.shown, task.not_run) for task in commands(Block(code=code, line=1, **how))]


def test_commands_of_a_block():
    console = "$ dear-mpi explain \\\n    --ranks 3  # a ring\none\n...\n$ make test\n$ dear-mpi bench --device cuda\n"
    explain = ("dear-mpi explain --ranks 3", ("one", "..."), "")
    skipped = [("", (), "it installs, or is a target of its own"), ("", None, "it needs a GPU")]
    assert said(console, language="console") == [explain, *skipped]
    train = ("dear-mpi train --iterations 9 --iterations 5", None, "")
    assert said("dear-mpi train --iterations 9\n\nwire | 3 2 1\n", language="indented") == [train]
    piped = ("dear-mpi train --iterations 5 | tail", None, "")
    assert said("dear-mpi train | tail\n", language="sh") == [piped]
    assert said("dear-mpi explain\n", language="sh", not_run="a reason") == [("", (), "a reason")]
    with pytest.raises(AssertionError, match="nobody knows whether to run 'rm'"):
        said("rm mine.py\n", language="bash")
