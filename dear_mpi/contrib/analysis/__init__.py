"""Explain what ``bench`` measured: flags that look closer at a run, and report it as comments and in ``--json``.

Why: a time's parts, by the model. Guidelines: calls that are slower than others that do their work. Arrival: calls that
ranks enter late. Steps: where the time of our plans goes.
"""

from dear_mpi.cli.commands import AddedFlag

WHY = AddedFlag(
    "Explain the time of each algorithm at the measured size nearest to SIZE; several with commas.",
    "dear_mpi.contrib.analysis.why:why",
    metavar="SIZE",
)
GUIDELINES = AddedFlag(
    "Report calls that take longer than others that do their work.", "dear_mpi.contrib.analysis.guidelines:guidelines"
)
ARRIVAL = AddedFlag(
    "Also time calls that ranks enter late: one-late (another rank each turn), ramp (evenly spread), random; several "
    "with commas. one-late:2ms gives the longest delay, else it is the median time of balanced calls. Times count from "
    "the last arrival.",
    "dear_mpi.contrib.analysis.arrival:arrival",
    metavar="PATTERN",
)
STEPS = AddedFlag(
    "Also record our plans at the largest size: where the time goes, step by step.",
    "dear_mpi.contrib.analysis.steps:steps",
)
TIMELINE = AddedFlag(
    "With --steps: what each rank did, and when. FILE.json for Perfetto, or an ending that an extra draws.",
    "dear_mpi.contrib.analysis.steps:timeline",
    metavar="FILE",
)
