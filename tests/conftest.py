"""pytest under mpirun, on top of pytest-mpi: no rank hangs because another one failed, and no failure is hidden.

- A rank on which anything fails prints its report with its rank, then aborts the job.
- A test that takes longer than the ini option `mpi_limit_s` is ended likewise, with the stacks of every rank.
- Every MPI test ends with a barrier, so that a message left over meets its own test and not the next one.
- Only rank 0 draws the terminal and writes the XML report.

Without --with-mpi or --only-mpi none of it is active and mpi4py is not imported.
"""

import gc
import importlib.util
import os
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import hypothesis
import pytest
from _pytest.doctest import DoctestModule
from _pytest.terminal import TerminalReporter

from tests.browser import browser, opened  # noqa: F401  # fixtures

PLUGIN = "rank-of-job"
TESTS = Path(__file__).parent
GRACE_S = 2.0  # between a report and the abort: other ranks that fail too print theirs, the launcher forwards both

# The same examples on every rank and in every run, however slow the machine: no clock, no database of past failures.
# No shrinking under MPI: it would repeat a test on the rank alone that failed.
hypothesis.settings.register_profile(
    "serial", derandomize=True, database=None, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "mpi",
    parent=hypothesis.settings.get_profile("serial"),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)


class RankOfJob:
    """The plugin of one rank. Made before pytest configures its own plugins: options can still be changed."""

    def __init__(self, config):
        from mpi4py import MPI  # initialises MPI: under mpirun only

        self.comm = MPI.COMM_WORLD
        self.library = " ".join(MPI.Get_library_version().splitlines()[0].split(",")[0].split())
        self.limit_s = float(config.getini("mpi_limit_s"))
        self.stderr = os.fdopen(os.dup(sys.__stderr__.fileno()), "w")  # pytest captures the original
        self.folder = tempfile.TemporaryDirectory(prefix="pytest-rank-")  # ranks that share one race to tidy it
        config.option.basetemp = Path(self.folder.name) / "tests"
        if self.comm.rank != 0:
            config.option.xmlpath = None

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config):
        if self.comm.rank != 0:
            quiet = TerminalReporter(config, open(os.devnull, "w"))  # noqa: SIM115
            config.pluginmanager.unregister(name="terminalreporter")
            config.pluginmanager.register(quiet, "terminalreporter")

    def pytest_unconfigure(self):
        self.folder.cleanup()

    def pytest_report_header(self):
        return f"mpi: {self.comm.size} rank(s), {self.library}, at most {self.limit_s:g} s per test"

    def end_job(self, reason):
        """Says why, then ends all ranks; lines of several ranks stay apart."""
        prefix = f"[rank {self.comm.rank} of {self.comm.size}] "
        text = "".join(f"{prefix}{line}\n" for line in reason.splitlines())
        self.stderr.write(text)
        self.stderr.flush()
        time.sleep(GRACE_S)
        self.comm.Abort(1)

    def end_job_late(self, test):
        """Runs in a thread of its own: a test that waits inside MPI has released the interpreter lock."""
        frames = {ident: frame for ident, frame in sys._current_frames().items() if ident != threading.get_ident()}
        stacks = [f"thread {ident}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames.items()]
        self.end_job(f"TIME OVER {test} took more than {self.limit_s:g} s; it is at\n" + "\n".join(stacks))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        timer = threading.Timer(self.limit_s, self.end_job_late, [item.nodeid])
        timer.daemon = True
        timer.start()
        try:
            return (yield)
        finally:
            timer.cancel()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report):
        """After setup, call and teardown each: a rank that failed never gets as far as the next one's barrier."""
        if report.failed:
            captured = "\n".join(f"--- {title}\n{text}" for title, text in report.sections)
            self.end_job(f"FAILED {report.nodeid} ({report.when})\n{report.longreprtext}\n{captured}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report):
        if report.failed:
            self.end_job(f"FAILED to collect {report.nodeid}\n{report.longreprtext}")

    def pytest_internalerror(self, excrepr):
        self.end_job(f"pytest failed\n{excrepr}")


def pytest_addoption(parser):
    parser.addini("mpi_limit_s", "seconds that one test may take under MPI", default="300")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    under_mpi = config.getoption("--with-mpi", False) or config.getoption("--only-mpi", False)
    hypothesis.settings.load_profile("mpi" if under_mpi else "serial")
    if under_mpi:
        plugin = RankOfJob(config)
        size = plugin.comm.size
        if size != int(os.environ.get("LAUNCHED_RANKS", size)):
            raise pytest.UsageError(f"each rank sees {size} rank(s): mpirun does not belong to {plugin.library}")
        config.pluginmanager.register(plugin, PLUGIN)


def pytest_ignore_collect(collection_path):
    """What needs CuPy or the stand-in for it: where there is neither, it is left to `make test-standin`."""
    needs_cupy = collection_path in (TESTS / "gpu", TESTS / "standin")
    return True if needs_cupy and importlib.util.find_spec("cupy") is None else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Tests hold no examples. Looked through for them, a file that cannot be imported would count as skipped."""
    found = yield
    return [node for node in found if not isinstance(node, DoctestModule)]


def pytest_collection_modifyitems(items):
    """A forgotten mark or a misspelt min_size would skip a test, or run it with too few ranks, in silence."""
    for item in items:
        mark = item.get_closest_marker("mpi")
        if TESTS in item.path.parents and "mpi" in item.path.relative_to(TESTS).parts and mark is None:
            raise pytest.UsageError(f"{item.nodeid} is in a folder mpi but not marked @pytest.mark.mpi")
        if mark is not None and (mark.args or mark.kwargs.keys() - {"min_size"}):
            raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.mpi takes min_size= alone, got {mark}")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Ten thousand tests and all modules stay to the end: the collector would go through them again and again, as it
    would through the steps of programs while they are written. Both together took a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


@pytest.fixture(scope="session")
def comm():
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture(scope="session")
def agree(comm):
    """A collective assertion: call it on all ranks; it fails on all ranks if it fails on one, and names those."""

    def agree(condition, message=""):
        answers = comm.allgather(None if condition else f"rank {comm.rank}: {message or 'false'}")
        failed = [answer for answer in answers if answer is not None]
        assert not failed, f"failed on {len(failed)} of {comm.size} ranks: " + "; ".join(failed)

    return agree


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory of a test, which is its own and empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _barrier_after_mpi_test(request):
    under_mpi = request.node.get_closest_marker("mpi") and request.config.pluginmanager.has_plugin(PLUGIN)
    comm = request.getfixturevalue("comm") if under_mpi else None
    yield
    if comm is not None:
        comm.Barrier()
