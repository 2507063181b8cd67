"""Find the rank, link or layer that iterations wait for: replay a recorded run with each at its usual speed.

Start at ``blame`` in blamed.py.
"""

from dear_mpi.cli.commands import AddedFlag, Command

COMMAND = Command(
    "Say which rank, link or layer the iterations of a recorded run waited for. Runs without MPI.",
    "dear_mpi.contrib.blame.command:blame",
)
FLAG = AddedFlag(
    "Say which rank, link or layer iterations waited for, by replaying the last 20 with each at its usual speed.",
    "dear_mpi.contrib.blame.job:Blamer",
)
