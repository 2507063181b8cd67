"""A rank with a fault: patches dear-mpi as the variable FAULT says, then runs its command line with our arguments.

The product knows nothing of it. FAULT is JSON: what happens (``kind``), where (``phase``), on which rank, at the how
manyeth time that it comes there (``at``). A fault that strikes leaves a file ``struck`` in the folder FAULT_FOLDER.
"""

import atexit
import errno
import functools
import importlib
import json
import os
import pathlib
import signal
import sys
import threading
import time

FAULT = json.loads(os.environ.get("FAULT", "{}"))  # {} where the module is only looked at
FOLDER = pathlib.Path(os.environ.get("FAULT_FOLDER", "."))
ENDLESS_S = 10_000
BRIEF_S = 0.7

# Where a phase begins: an import; the second one comes when MPI has started.
IMPORTS = {"imports": "dear_mpi.cli.app", "set-up": "dear_mpi.collectives.transports.mpi"}
# Or a call, before which the fault strikes.
CALLS = {
    "MPI start": "dear_mpi.ranks.world:started",
    "agreement": "dear_mpi.ranks.world:agree",
    "plans": "dear_mpi.training.fabric.live:make_plan",
    "first iteration": "dear_mpi.models.layers:Dense.backward",
    "collective": "dear_mpi.collectives.plans.plan:Plan.__call__",
    "mid run": "dear_mpi.models.layers:Dense.forward",
    "op": "dear_mpi.collectives.plans.runners.messages:combiner",
    "algorithm": "dear_mpi.collectives.plans.runners.messages:write_program",
    "flush": "dear_mpi.training.schedules.dear:Dear.flush",
    "evaluation": "dear_mpi.training.runs.job:Job.accuracy",
    "report": "dear_mpi.training.runs.train:describe",
}


def rank():
    """This rank, as the launcher or the name of the thread says; of an engine's thread, that of its job."""
    for size, number in (("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK")):
        if size in os.environ:
            return int(os.environ[number])
    kind, _, number = threading.current_thread().name.partition("_")
    return int(number) if kind == "rank" else None


def strike():
    (FOLDER / "struck").touch()
    STRIKES[FAULT["kind"]]()


def planted():
    raise RuntimeError("planted")


STRIKES = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "late": lambda: time.sleep(BRIEF_S),
    "endless": lambda: time.sleep(ENDLESS_S),
    "raise": planted,
}


def before(call, times, prepared_by=None):
    """Strike before the call that is made for the ``times``-th time on the guilty rank."""
    made = 0

    @functools.wraps(call)
    def wrapper(*args, **kwargs):
        nonlocal made
        here = prepared_by if rank() is None else rank()  # the engine's thread has no name of its rank
        if here is None and args:
            here = getattr(getattr(args[0], "run", None), "rank", None)  # but the plan knows it
        if here == FAULT["rank"]:
            made += 1
            if made == times:
                strike()
        return call(*args, **kwargs)

    return wrapper


def patch(place, wrap):
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    setattr(owner, name, wrap(getattr(owner, name)))


class AtImport:
    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path=None, target=None):
        if name == self.name and rank() == FAULT["rank"]:
            sys.meta_path.remove(self)
            strike()


def prepared(combiner):
    """A ``combiner`` whose calls strike when they are made, not when they are prepared."""

    def prepare(*args, **kwargs):
        return before(lambda: action(), FAULT["at"], rank()) if (action := combiner(*args, **kwargs)) else None

    return prepare


def cut_link():
    """The emulated link from the guilty rank to another one loses all messages after some."""
    from dear_mpi.collectives.transports import emulated

    send_init, sent = emulated.EmulatedTransport.send_init, 0

    def send(transport, data, peer, tag):
        request = send_init(transport, data, peer, tag)
        if (transport.rank, peer) == (FAULT["rank"], FAULT["peer"]):
            leave = request.leave

            def lose():
                nonlocal sent
                sent += 1
                if sent <= FAULT["at"]:
                    leave()
                else:
                    (FOLDER / "struck").touch()
                    request.active = False

            request.leave = lose
        return request

    emulated.EmulatedTransport.send_init = send


def fill_disk():
    """The file of --json can be made, and takes nothing."""
    import io

    opened = io.open

    def full(file, *args, **kwargs):
        found = opened(file, *args, **kwargs)
        if isinstance(file, (str, os.PathLike)) and "report" in str(file) and found.writable():

            def write(text):
                (FOLDER / "struck").touch()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

            return type("Full", (), {"write": staticmethod(write), "__enter__": lambda self: self, "name": found.name,
                                     "fileno": staticmethod(found.fileno), "close": staticmethod(found.close),
                                     "__exit__": lambda self, *error: found.close()})()  # fmt: skip
        return found

    io.open = full


def plant():
    kind, phase = FAULT["kind"], FAULT["phase"]
    if kind == "bad argument":
        if rank() == FAULT["rank"]:
            (FOLDER / "struck").touch()
            sys.argv[1:] = FAULT["arguments"]
    elif kind == "dead link":
        cut_link()
    elif kind == "none":
        return
    elif kind == "full disk":
        fill_disk()
    elif phase in IMPORTS:
        sys.meta_path.insert(0, AtImport(IMPORTS[phase]))
    elif phase == "op":
        patch(CALLS[phase], prepared)
    elif phase == "end":
        if rank() == FAULT["rank"]:
            atexit.register(strike)  # the first one registered is the last one called
    else:
        patch(CALLS[phase], lambda call: before(call, FAULT["at"]))


if __name__ == "__main__":
    from dear_mpi.__main__ import main

    plant()
    main()
