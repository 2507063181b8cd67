"""How a collective is carried out: by messages, in memory that ranks share, or by the MPI library itself."""

from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.runners import messages, native, shared
from dear_mpi.collectives.plans.runners.runner import Runner
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.transports.transport import Transport

__all__ = ["RUNNERS", "check_algorithm", "check_call"]

RUNNERS: dict[str, Runner] = {"messages": messages, "shared": shared, "native": native}


def check_algorithm(name: str, transport: Transport, *collectives: str) -> None:
    """See that there is such an algorithm for these collectives, and that it can run on this transport.

    Raises:
        ValueError: an unknown name, one that does not serve them, or that cannot run there.
        ProgramError: a user's algorithm is wrong; ours are proved by the tests.
    """
    for collective in collectives if rules_of(name) is None else ():
        RUNNERS[runner_of(name)].check(name, collective, transport)


def check_call(call: Call, transport: Transport) -> dict[str, object]:
    """What must be equal on all ranks that make the same call: the fingerprint of the plan.

    Raises:
        ValueError: an argument is not allowed.
        ProgramError: a user's algorithm is wrong.
    """
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
