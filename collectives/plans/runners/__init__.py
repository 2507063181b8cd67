"""How a collective is carried out: by messages, in memory that ranks share, or by the MPI library itself."""

from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.plans.runners import messages, native, shared
from dear_mpi.collectives.plans.runners.runner import Runner
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.transports.transport import Transport

__all__ = ["RUNNERS", "check_algorithm"]

RUNNERS: dict[str, Runner] = {"messages": messages, "shared": shared, "native": native}


def check_algorithm(name: str, transport: Transport, *collectives: str) -> None:
    """See that there is such an algorithm for these collectives, and that it can run on this transport.

    Raises:
        ValueError: an unknown name, one that does not serve them, or that cannot run there.
        ProgramError: a user's algorithm is wrong; ours are proved by the tests.
    """
    for collective in collectives if rules_of(name) is None else ():
        RUNNERS[runner_of(name)].check(name, collective, transport)
