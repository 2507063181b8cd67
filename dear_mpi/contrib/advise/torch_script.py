"""Run an unchanged PyTorch script in a separate process until enough iterations were watched.

    python -m dear_mpi.contrib.advise.torch_script OUTCOME ITERATIONS SCRIPT ARGUMENTS

Scripts change their process, so none runs in the answering one. The process ends in mid-script without unwinding: a
script may catch any exception, or wait for a thread.
"""

import ctypes
import gc
import io
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch  # noqa: F401  # before the script begins

from dear_mpi.contrib.advise.observed import JOB, Outcome
from dear_mpi.contrib.advise.torch_found import found
from dear_mpi.contrib.advise.torch_watcher import WARM, Watcher

LEAST = 3  # watched iterations, to show variation
HIDDEN = {__file__, runpy.__file__, "<frozen runpy>"}
END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
FLUSH_S = 5.0


def main() -> None:
    """Write an ``Outcome`` to a file."""
    path, iterations, script, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGKILL)
    sys.argv = [script, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(script).resolve().parent)

    def tell(outcome: Outcome) -> None:
        Path(path).write_bytes(msgspec.json.encode(outcome))

    def leave(outcome: Outcome) -> NoReturn:
        tell(outcome)
        flushing = threading.Thread(target=flush, daemon=True)  # may block forever, as on a full pipe
        flushing.start()
        flushing.join(FLUSH_S)
        os._exit(0)

    try:
        outcome = watch_script(Path(script), int(iterations), leave)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    if outcome.failed:
        leave(outcome)
    tell(outcome)


def watch_script(script: Path, iterations: int, enough: Callable[[Outcome], None]) -> Outcome:
    """Run the script as the main program; return the outcome if it ends by itself.

    Else ``enough`` gets it, after ``iterations`` watched and as many plain ones. Forked children are not watched.
    """
    owner = os.getpid()
    with missing_variables() as missed:

        def outcome(watcher: Watcher, failed: str = "", trace: str = "") -> Outcome:
            failed = failed or too_little(watcher)
            return Outcome(
                watched=None if failed else found(watcher),
                failed=failed and f"script {str(script)!r} {failed}",
                trace=trace,
                iterations=watcher.count,
                missed=sorted(missed),
            )

        watcher = Watcher(iterations, lambda watcher: enough(outcome(watcher)))
        os.register_at_fork(after_in_child=watcher.__exit__)
        with watcher:
            failed, trace = run(script, owner)
            if not failed:
                wait_for_threads()
        return outcome(watcher, failed and f"ended with {failed}, after {watcher.count} iterations", trace)


@contextmanager
def missing_variables() -> Iterator[set[str]]:
    missed = set[str]()
    usual = type(os.environ)

    class Asked(usual):  # type: ignore[valid-type, misc]
        def __getitem__(self, name: str) -> Any:
            try:
                return super().__getitem__(name)
            except KeyError:
                missed.update({name} & set(JOB))
                raise

    os.environ.__class__ = Asked
    try:
        yield missed
    finally:
        os.environ.__class__ = usual


def run(script: Path, owner: int) -> tuple[str, str]:
    """Return the name of the script's error and its traceback, or two empty texts."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except BaseException as error:
        if os.getpid() != owner or isinstance(error, KeyboardInterrupt):
            raise
        if isinstance(error, SystemExit):
            return (f"exit code {error.code}" if error.code not in (None, 0) else ""), ""
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in HIDDEN]
        lines = [*traceback.format_list(own), *traceback.format_exception_only(error)]
        return type(error).__name__, "".join(("Traceback (most recent call last):\n", *lines))
    if os.getpid() != owner:
        sys.exit()
    return "", ""


def wait_for_threads() -> None:
    """As Python does at the end of a program: they may be training."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()


def too_little(watcher: Watcher) -> str:
    """Return why a script that did not fail cannot be predicted; "" if it can."""
    if watcher.optimizer is None:
        return (
            "called step() of no optimiser of PyTorch in this process: advise sees iterations by them (it does not "
            "see processes that a script starts)"
        )
    if watcher.count >= WARM and not any(watcher.watched):
        return "has run no module with gradients: advise sees layers by them"
    if len(watcher.watched) < LEAST or not watcher.plain:
        least = WARM + 2 * LEAST
        return (
            f"ended after {watcher.count} iterations: advise needs {least}, of which {WARM} do not count; let it run "
            "longer"
        )
    return "" if watcher.roots else "called no module of PyTorch in the iterations that were watched"


def flush() -> None:
    for each in gc.get_objects():
        if issubclass(type(each), io.IOBase):
            with suppress(Exception):
                each.flush()


if __name__ == "__main__":
    main()
