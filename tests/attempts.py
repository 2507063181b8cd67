"""Measurements that are made again while others took too much of the processors, and kept, so that a page may be
measured in parts."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.launch import ROOT, ended
from tests.provenance import Record, Watch
from tests.stolen import ATTEMPTS, QUIET

__all__ = ["attempts", "quietest", "run"]


def attempts(folder: Path, name: str) -> list[Record]:
    """The records of all attempts at a measurement."""
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
    """Of all attempts the quietest."""
    return min(made, key=lambda each: each.stolen)


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
