"""Find the rank, link or layer that iterations wait for: replay a recorded run with each at its usual speed.

Start at ``blame`` in blamed.py. Each file needs the ones before it. Graph: events, their dependencies, the replay;
threads: each rank's activity; messages: dependencies between ranks; causes: suspects and their usual speed; blamed:
the outliers, and savings by noise; output: sentences, data, tables; job: running jobs; command.
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
