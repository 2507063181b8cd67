"""Which rank, link or layer iterations wait for: a recorded run as a graph, replayed with each at its usual speed.

Start here: blame in blamed.py. Each file needs those before it: graph (moments, and what each waits for; the replay),
threads (what each rank did), messages (what joins ranks), causes (suspects and their usual speed), chance (what noise
saves), blamed (who stands out), output (sentences, data, tables), job (of a run that is under way), command.
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
