from dear_mpi.cli.commands import AddedFlag

ENDINGS = (".html", ".htm")
PAGE = "Write a page to look at, FILE.html: lanes of all schedules on one axis, for any browser, without a network."
EXPLAIN = AddedFlag(
    "Write a page to step through, FILE.html: one file for any browser, without a network; of two algorithms at most.",
    "dear_mpi.contrib.pages.algorithms:write_algorithms",
    endings=ENDINGS,
)
SIMULATE = AddedFlag(PAGE, "dear_mpi.contrib.pages.predicted:write_predicted", endings=ENDINGS)
COMPARE = AddedFlag(PAGE, "dear_mpi.contrib.pages.measured:write_measured", endings=ENDINGS)
