"""Records what people see: runs commands at a terminal of 80 columns and writes docs/terminal.md.

    python -m tests.terminal

A progress bar is shown as it stood in the middle, above what came after it.
"""

import fcntl
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from functools import partial
from pathlib import Path

from tests.attempts import Runs, kept
from tests.provenance import ROOT, Watch

PAGE = "docs/terminal.md"
COLUMNS = 80
HEAD = f"""This page shows what the commands look like at a terminal of {COLUMNS} columns, and what a file gets instead,
under Open MPI's `mpirun`. Lines that begin with `~` show a progress bar while it moves; the bar is gone when the
command is over. Colours are left out. After an error `mpirun` adds its own lines, which `head` removes here.
"""
SCENES = {
    "A job": ["mpirun -n 2 dear-mpi train --model mlp --iterations 300"],
    "The demo": ["mpirun -n 4 dear-mpi demo"],
    "Schedules compared": ["mpirun -n 2 dear-mpi compare --forward-time 0.05 --link 10gbit,50us --iterations 15"],
    "An algorithm explained": [
        "dear-mpi explain --ranks 4 --collective reduce_scatter --check",
        "dear-mpi explain --ranks 16 | tail -n 23",
    ],
    "Wrong flags": [
        "mpirun -n 4 dear-mpi train --itrations 3 2>&1 | head -n 1",
        "mpirun -n 4 dear-mpi train --segment 0 2>&1 | head -n 1",
        "mpirun -n 4 dear-mpi train --json none/out.json 2>&1 | head -n 1",
    ],
    "A file": ["mpirun -n 2 dear-mpi train > run.txt", "cat run.txt"],
}


def at_a_terminal(command: str, folder: str) -> str:
    """All that a shell's command writes to a terminal."""
    child, screen = pty.fork()
    if child == 0:
        os.chdir(folder)
        setting = f"export TERM=xterm PYTHONPATH={ROOT} PATH={sys.prefix}/bin:$PATH; unset COLUMNS NO_COLOR"
        os.execvp("bash", ["bash", "-c", f". {ROOT}/hostfiles/local.env; {setting}; {command}"])
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    written = b""
    while True:
        try:
            data = os.read(screen, 65536)
        except OSError:  # the command is over
            break
        written += data
    os.waitpid(child, 0)
    return written.decode()


def seen(written: str) -> list[str]:
    """The lines that stay, and each bar in its middle."""
    lines, bars = [""], []
    for part in re.split(r"(\r?\n|\r|\x1b\[[0-9;?]*[A-Za-z])", written):
        a_bar = "━" in lines[-1] and "/" in lines[-1]
        if part.endswith("\n"):
            if bars and lines[-1] and not a_bar:
                lines[-1:] = [bars[len(bars) // 2], lines[-1]]
                bars = []
            lines.append("")
        elif part == "\x1b[2K":
            if a_bar:
                bars.append("~ " + lines[-1].rstrip())
            lines[-1] = ""
        elif part == "\x1b[1A":
            lines.pop()
        elif part and not part.startswith(("\r", "\x1b")):
            lines[-1] += part
    return [line.rstrip() for line in lines]


def recorded(file: Path) -> None:
    """Run all scenes, and write down what they show."""
    page = [HEAD]
    with tempfile.TemporaryDirectory() as folder:
        for title, commands in SCENES.items():
            page.append(f"## {title}\n\n```")
            for command in commands:
                page += [f"$ {command}", *"\n".join(seen(at_a_terminal(command, folder))).strip("\n").split("\n")]
            page.append("```\n")
    file.write_text("\n".join(page), encoding="utf-8")


def main() -> None:
    with kept(None) as folder:
        runs = Runs(folder)
        found = runs.take("all", "terminal", partial(Watch, "make terminal"), recorded)
        runs.write(PAGE, "At a terminal", [found[0].read_text("utf-8")] if found else [])


if __name__ == "__main__":
    main()
