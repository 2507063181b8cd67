"""How a collective is carried out: by messages, in memory that ranks share, or by the MPI library itself.

Each module of this folder is a runner, chosen by the algorithm (``runner_of``). It has three functions:

    check(algorithm, collective, transport)   see that the algorithm can carry out the collective here
    check_call(call, transport)               the same for this very call; what else must be equal on all ranks
    prepare(task)                             collective: a run on the task's buffer

The first two raise a ValueError where it cannot, and a ProgramError where a user's algorithm is wrong.
"""

from types import ModuleType

from dear_mpi.collectives.algorithms.registry import check_whole, runner_of
from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.runners import messages, native, shared
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.transports.transport import Transport

RUNNERS: dict[str, ModuleType] = {"messages": messages, "shared": shared, "native": native}


def check_algorithm(name: str, transport: Transport, *collectives: str) -> None:
    """See that there is such an algorithm for these collectives, and that it can run on this transport; or raise."""
    check_whole(name)
    for collective in collectives if rules_of(name) is None else ():
        RUNNERS[runner_of(name)].check(name, collective, transport)


def check_call(call: Call, transport: Transport) -> dict[str, object]:
    """What must be equal on all ranks that make the same call: the fingerprint of the plan; or raise."""
    facts = call.check(transport)
    # Only a tuning table makes a difference for ranks that share memory, which they find out later.
    for sharing in (False,) if call.rules is None else (True, False):
        choice = call.chosen(transport, sharing=sharing)
        runner = RUNNERS[runner_of(choice.algorithm)]
        runner.check(choice.algorithm, choice.collective, transport)
        programs = runner.check_call(choice, transport)
        if programs is not None:
            facts["the programs of the algorithm"] = programs
    return facts
