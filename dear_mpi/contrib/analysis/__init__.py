"""Explain what ``bench`` measured; ``bench-diff``."""

from dear_mpi.cli.commands import AddedFlag, Command

BENCH_DIFF = Command(
    "Report at which sizes one saved run of bench is slower than another: exit code 1 if any is, 3 if it cannot tell.",
    "dear_mpi.contrib.analysis.diff_command:bench_diff",
)
OVERLAP = AddedFlag(
    "Also run our plans and MPI's non-blocking call during compute, and report how much of them is hidden.",
    "dear_mpi.contrib.analysis.overlap:overlap",
)
TESTS = AddedFlag(
    "With --overlap: calls of advance(), or of MPI_Test, during the compute; default: 16.",
    "dear_mpi.contrib.analysis.overlap:tests",
    metavar="INTEGER",
)
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
