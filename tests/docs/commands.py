"""The commands and programs of a page: which are run, how, and which are not, for a reason that is said."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.markdown import Block, blocks

RUN = ("dear-mpi", "mpirun", "python")
# What a page may tell its reader to do, and nobody does here.
NOT_RUN = {
    **dict.fromkeys(("make", "pip", "conda", "git", "apt", "sudo"), "it installs, or is a target of its own"),
    **dict.fromkeys((".", "source", "cd", "export", "module"), "the environment is that of the test"),
    **dict.fromkeys(("srun", "sbatch", "salloc", "ssh", "sinfo", "scontrol"), "it needs a cluster"),
    "nvidia-smi": "it needs a GPU",
}
BY_RULE = {
    r"--device cuda\b": "it needs a GPU",
    r"\bcupy\b|--mca\b": "it needs a GPU, or another MPI",
    r"MPI4PY_LIBMPI": "it needs another MPI",
    r"--hostfile|\s-f hosts|\s--host\b": "it needs several hosts",
    r"^hostfiles/": "it needs root, or a GPU",
}
# What is appended to a command, which takes the last of two flags: less of the same.
QUICK = "--model synthetic:small.json --forward-time 0.01"
SHORTER = {
    r"dear-mpi train\b(?!.*--(warmup|blame|fusion (bo|auto))\b)": "--iterations 5",  # blame needs more
    r"dear-mpi compare\b(?!.*\b(bo|auto)\b)": "--iterations 2",
    r"dear-mpi (train|compare) .*synthetic:": QUICK,
    r"dear-mpi compare\b(?!.*--model)": QUICK,
    r"dear-mpi (train|compare) (?!.*\bhosts=).*--link ": "--link 100gbit,50us",
    r"dear-mpi bench(?!-)\b": "--sizes 4KiB:1MiB --budget 10ms",
    r"dear-mpi bench-diff\b": "--at-least 1000%",  # such short runs differ
}
SMALL = {"modules": [{"name": f"layer {n}", "params": [100_000, 100], "fwd_flops": 1 + n % 3} for n in range(12)]}
ASSIGNMENTS = r"(?:\w+=\S+\s+)*"


@dataclass(frozen=True)
class Task:
    """Something that a page has its reader run.

    Attributes:
        line: of the page.
        command: for the shell; "" where ``not_run`` says why there is none.
        shown: what the page shows of the output, or None where it shows nothing that can be compared.
        needs: packages that it imports, without which it is not run.
    """

    line: int
    name: str
    command: str
    shown: tuple[str, ...] | None = None
    not_run: str = ""
    needs: tuple[str, ...] = ()


def tasks(page) -> tuple[list[Task], dict[str, str]]:
    """What a page has its reader run, from top to bottom, and the files that it has him write before."""
    found, files = list(blocks(page)), {}
    programs = []
    for block in found:
        if block.language == "python":
            programs.append(program(block, files))
        elif block.language in ("console", "bash", "sh", "indented"):
            programs += commands(block)
    used = " ".join(task.command for task in programs if not task.name.startswith("python block"))
    return [task for task in programs if not named(task) or named(task) not in used], files


def named(task: Task) -> str:
    """The file of a block of Python that a command may use."""
    return task.name.partition("python block ")[2]


def commands(block: Block) -> Iterator[Task]:
    """The commands of a block, with the lines that it shows after each."""
    shell = block.language != "indented"
    text = re.sub(r"\\\n\s*", "", block.code)
    lines, line_of = text.splitlines(), block.line
    for number, line in enumerate(lines):
        line = line.strip()
        if block.language == "console" and not line.startswith("$ "):
            continue
        line = re.sub(r"(^|\s)#\s.*$", "", line.removeprefix("$ ")).strip()
        first = re.sub(rf"^{ASSIGNMENTS}", "", line).partition(" ")[0]
        if not line or (not shell and first not in RUN):
            continue
        shown = list(shown_after(lines[number + 1 :])) if block.language == "console" else []
        yield command(line, first, line_of + number, block, shown)


def shown_after(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("$ "):
            return
        yield line


def command(line: str, first: str, number: int, block: Block, shown: list[str]) -> Task:
    reasons = [reason for rule, reason in BY_RULE.items() if re.search(rule, line)]
    reason = block.not_run or next(iter(reasons), "") or NOT_RUN.get(first, "")
    assert reason or first in RUN, f"line {number}: nobody knows whether to run {first!r}: {line}"
    added = " ".join(more for rule, more in SHORTER.items() if re.search(rule, line))
    alone, end = re.match(r"(.*?)(\s(?:[|>]|2>).*)?$", line).groups(default="")
    return Task(
        number, line, "" if reason else f"{alone} {added}".strip() + end, None if added else tuple(shown), reason
    )


def program(block: Block, files: dict[str, str]) -> Task:
    """How a block of Python is run; one whose first line names a file is written there."""
    first = block.code.partition("\n")[0]
    launched = re.match(r"# (mpirun -n \d+ python .*?(\w+\.py))", first)
    name = launched[2] if launched else (re.match(r"# (\w+\.py)$", first) or [None, ""])[1]
    code = re.sub(r"^\w+(, \w+)* = \.\.\.(\s+#.*)?\n", "", block.code, flags=re.MULTILINE)
    file = name or f"block_{block.line}.py"
    files[file] = files.get(file, "") + f"{block.setup}\n{code}"
    start = "mpirun -n 2 python -m mpi4py" if "MPI.COMM_WORLD" in block.code + block.setup else "python"
    needs = tuple(sorted(set(re.findall(r"\b(?:import|from) (torch|jax|cupy)\b", block.setup + block.code))))
    how = launched[1] if launched else f"{start} {file}"
    return Task(block.line, f"python block {name}", how, None, block.not_run, needs)


def words(line: str) -> list[str]:
    """The words after ``dear-mpi`` in a command, without what the shell does with its output."""
    given = shlex.split(line.partition("dear-mpi ")[2])
    ends = [number for number, word in enumerate(given) if word in ("|", ">", "2>&1", ">>", "&&", ";", "<")]
    return given[: min(ends, default=len(given))]
