"""Draw algorithms, schedules, saved runs of ``bench`` and timelines with matplotlib; write traces for Perfetto."""

from dear_mpi.cli.commands import AddedFlag, Command

ENDINGS = (".png", ".pdf", ".svg")  # matplotlib has others, and some lose colours
PLACE = "dear_mpi.contrib.pictures"
PLOT_HELP = "Draw the rows of the table into FILE.png, FILE.pdf or FILE.svg."

EXPLAIN = AddedFlag("Draw the steps into FILE.png, FILE.pdf or FILE.svg.", f"{PLACE}.steps:write_steps", ENDINGS)
SIMULATE = AddedFlag(PLOT_HELP, f"{PLACE}.sweep:write_sweep", ENDINGS)
BENCH = AddedFlag(PLOT_HELP, f"{PLACE}.measured:write_runs", ENDINGS)
PLOT = Command(
    "Draw saved runs of bench: time and busbw by size, with intervals, models and bounds. Runs without MPI.",
    f"{PLACE}.commands:plot",
)
TIMELINE = Command(
    "Draw a saved timeline into FILE.png, FILE.pdf or FILE.svg. Runs without MPI.", f"{PLACE}.commands:timeline"
)
