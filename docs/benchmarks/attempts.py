"""Measurements that are made again while others took too much of the processors, and kept, so that a page may be
measured in parts.

    with kept(options.keep) as folder:
        runs = Runs(folder)
        if found := runs.take("a case", "case", watch, measure):
            lines = part(*found)
    runs.write("docs/benchmarks/hosts.md", "Between hosts", lines)
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from docs.benchmarks.provenance import Record, Watch, write_page
from docs.benchmarks.stolen import ATTEMPTS, QUIET
from tests.launch import ROOT, Mpi, ended, mpis_at_hand


def attempts(folder: Path, name: str) -> list[Record]:
    log = folder / f"{name}.records"
    return [Record(**each) for each in json.loads(log.read_text("utf-8"))] if log.exists() else []


def quietest(folder: Path, name: str, watch: Callable[[], Watch], measure: Callable[[Path], object]) -> Path:
    """The file of the quietest attempt. ``measure`` writes one; it is not called if a quiet one is there."""
    made = attempts(folder, name)
    for number in range(len(made), len(made) + ATTEMPTS):
        if made and min(each.stolen for each in made) <= QUIET:
            break
        watching = watch()
        measure(folder / f"{name}.{number}.json")
        made.append(watching.record())
        (folder / f"{name}.records").write_text(json.dumps([asdict(each) for each in made]), encoding="utf-8")
        print(f"{name}: {made[-1].stolen:.1%} of the processors lost", flush=True)
    return folder / f"{name}.{made.index(chosen(made))}.json"


def chosen(made: list[Record]) -> Record:
    return min(made, key=lambda each: each.stolen)


@contextmanager
def kept(folder: Path | None) -> Iterator[Path]:
    """A folder for what is measured: the one that is given, which stays, or a temporary one."""
    with tempfile.TemporaryDirectory(prefix="measured-") as name:
        found = (folder or Path(name)).resolve()
        found.mkdir(parents=True, exist_ok=True)
        yield found


class Runs:
    """The runs of a page. It has those that were quiet, and names the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: list[Record] = []
        self.left_out: list[str] = []

    def take(
        self, title: str, name: str, watch: Callable[[], Watch], measure: Callable[[Path], object]
    ) -> tuple[Path, Record] | None:
        """The file of the quietest attempt, and its record; None if that was not quiet: the page leaves it out."""
        file = quietest(self.folder, name, watch, measure)
        record = chosen(attempts(self.folder, name))
        if record.stolen > QUIET:
            self.left_out.append(title)
            return None
        self.records.append(record)
        return file, record

    def write(self, page: str, title: str, lines: Sequence[str]) -> None:
        """Write the page.

        Raises:
            SystemExit: no run was quiet; the page stays as it was.
        """
        if not self.records:
            raise SystemExit("no run was quiet: the page is not written")
        write_page(page, title, self.records, [*self.missing(), *lines])

    def missing(self) -> Iterator[str]:
        """What the page says of the runs that it leaves out."""
        if self.left_out:
            yield f"Left out, because no run was quiet: {', '.join(self.left_out)}.\n"


def run(command: list[str], environment: dict[str, str], limit_s: int) -> str:
    """Run a command of the checkout to its end; what it writes to its standard output.

    Raises:
        SystemExit: it failed, or took too long; with all that it has said.
    """
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    job = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)
    with ended(job):
        try:
            said, errors = map(str, job.communicate(timeout=limit_s))
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{' '.join(command)}\nit took more than {limit_s} s") from None
    if job.returncode:
        raise SystemExit(f"{' '.join(command)}\n{said}{errors}")
    return said


def first_mpi() -> Mpi:
    """The MPI that a page between hosts takes.

    Raises:
        SystemExit: there is none.
    """
    if not (mpis := mpis_at_hand()):
        raise SystemExit("there is no MPI: run `make install`")
    return mpis[0]


def page_of_one_run(
    module: str,
    about: str | None,
    page: str,
    title: str,
    measure: Callable[[Path], object],
    lines: Callable[[Path], Iterator[str]],
) -> None:
    """The command line of a page that one run between hosts fills; ``about``: the module's docstring."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="a folder for what is measured")
    with kept(parser.parse_args().keep) as folder:
        runs = Runs(folder)
        taken = runs.take("all", Path(page).stem, partial(Watch, f"python -m {module}", hosts=True), measure)
        runs.write(page, title, [*lines(taken[0])] if taken else [])
