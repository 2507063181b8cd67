"""How a collective is carried out: by messages, in memory that ranks share, or by the MPI library itself."""

from typing import Protocol

from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.execution import InstructionRun, Task
from dear_mpi.collectives.plans.runners import messages, native, shared
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.transports.transport import Transport


class Runner(Protocol):
    """One way to carry collectives out, chosen by the algorithm (``runner_of``). A module can be one."""

    def check(self, algorithm: str, collective: str, transport: Transport) -> None:
        """See that the algorithm can carry out the collective here.

        Raises:
            ValueError: it cannot.
            ProgramError: it is a user's, and wrong.
        """

    def check_call(self, call: Call, transport: Transport) -> object:
        """See that it can carry out this very call, as ``check``; what else must be equal on all ranks."""

    def prepare(self, task: Task) -> InstructionRun:
        """Collective: a run on the task's buffer."""


RUNNERS: dict[str, Runner] = {"messages": messages, "shared": shared, "native": native}


def check_algorithm(name: str, transport: Transport, *collectives: str) -> None:
    """See that there is such an algorithm for these collectives, and that it can run on this transport.

    Raises: as ``Runner.check``.
    """
    for collective in collectives if rules_of(name) is None else ():
        RUNNERS[runner_of(name)].check(name, collective, transport)


def check_call(call: Call, transport: Transport) -> dict[str, object]:
    """What must be equal on all ranks that make the same call: the fingerprint of the plan; raises as ``Runner``."""
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
