"""Runs somebody's script of PyTorch, as it is, in this process, until enough iterations were seen."""

import gc
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from dear_mpi.adapters.observed import Watched
from dear_mpi.adapters.torch_found import found
from dear_mpi.adapters.torch_watcher import WARM, Enough, Watcher

LEAST = 3  # iterations that were watched: fewer say nothing of how alike they are


def watch_script(script: Path, arguments: Sequence[str], iterations: int) -> Watched:
    """What the script did in so many iterations that were watched, and as many between them; then it ends.

    Raises:
        ValueError: it failed (its own traceback is on standard error), or trains nothing that can be seen, or too
            little of it.
    """
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks != "1":
        raise ValueError(f"advise watches a script on one rank, not on {ranks}: start it without torchrun")
    watcher = Watcher(iterations)
    try:
        with alone(script, arguments), watcher:
            failed = run(script)
            end_group()
        if failed:
            raise ValueError(f"script {str(script)!r} ended with {failed}, after {watcher.count} iterations")
        if len(watcher.watched) < LEAST or not watcher.plain:
            raise ValueError(f"script {str(script)!r} {too_little(watcher)}")
        if not watcher.roots:
            raise ValueError(f"script {str(script)!r} called no module of PyTorch in the iterations that were watched")
        return found(watcher)
    finally:
        let_go(watcher)


def let_go(watcher: Watcher) -> None:
    """Free what the script has left, its process groups last.

    The end of a group waits for its threads, which may wait for Python. Python's own object of a group lets them have
    it meanwhile; what DDP has inside does not, so it must not be the last to have the group.
    """
    groups = [getattr(root, "process_group", None) for root in watcher.roots]
    watcher.forget()
    gc.collect()
    groups.clear()


def run(script: Path) -> str:
    """Run it to its end, or until there is enough; what it failed with, in a word, or ""."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except Enough:
        pass
    except SystemExit as ended:
        return f"exit code {ended.code}" if ended.code not in (None, 0) else ""
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in HIDDEN]
        said = [*traceback.format_list(own), *traceback.format_exception_only(error)]
        print("Traceback (most recent call last):\n", *said, sep="", end="", file=sys.stderr)
        return type(error).__name__
    return ""


HIDDEN = {__file__, runpy.__file__, "<frozen runpy>"}


def too_little(watcher: Watcher) -> str:
    """Why nothing can be said of a script."""
    if watcher.optimizer is None:
        return (
            "called step() of no optimiser of PyTorch in this process: advise sees iterations by them (it does not "
            "see processes that a script starts)"
        )
    if watcher.count >= WARM and not any(watcher.watched):
        return "has run no module with gradients: advise sees layers by them"
    most = WARM + 2 * LEAST
    return (
        f"ended after {watcher.count} iterations: advise needs {most}, of which {WARM} do not count; let it run longer"
    )


@contextmanager
def alone(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """A process as the script expects it: its arguments, its folder, and the variables of a job of one rank, which
    ``torchrun`` would set."""
    job = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # any that is free
    kept = sys.argv, list(sys.path), dict(os.environ), sys.excepthook  # which torch.distributed replaces
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    for name, value in job.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        sys.argv, sys.path[:], _, sys.excepthook = kept
        os.environ.clear()
        os.environ.update(kept[2])


def end_group() -> None:
    """The process group that the script has left."""
    group: Any = torch.distributed
    if group.is_available() and group.is_initialized():
        with suppress(RuntimeError):
            group.destroy_process_group()
