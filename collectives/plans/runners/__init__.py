"""Run a collective by messages, in shared memory, or by the MPI library.

An algorithm has a runner (``runner_of``), a module with three functions:

    check(algorithm, collective, transport)   raise unless the algorithm can run here
    check_call(call, transport)               the same for one call; returns what must be equal on all ranks
    prepare(task)                             collective: return a run on the task's buffer

The first two raise ValueError, or ProgramError for a wrong user's algorithm.
"""

from importlib import import_module
from types import ModuleType

from dear_mpi.collectives.algorithms.registry import check_whole, runner_of
from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.transports.transport import Transport


def runner_for(algorithm: str) -> ModuleType:
    return import_module(f"{__name__}.{runner_of(algorithm)}")


def check_algorithm(name: str, transport: Transport, *collectives: str) -> None:
    check_whole(name)
    for collective in collectives if rules_of(name) is None else ():
        runner_for(name).check(name, collective, transport)


def check_call(call: Call, transport: Transport) -> dict[str, object]:
    facts = call.check(transport)
    # Sharing memory matters only for a tuning table.
    for sharing in (False,) if call.rules is None else (True, False):
        choice = call.chosen(transport, sharing=sharing)
        runner = runner_for(choice.algorithm)
        runner.check(choice.algorithm, choice.collective, transport)
        programs = runner.check_call(choice, transport)
        if programs is not None:
            facts["the programs of the algorithm"] = programs
    return facts
