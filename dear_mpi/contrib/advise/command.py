from pathlib import Path

from dear_mpi.cli.flags import Flags, argument, check_files, chosen, flag, flags_of, shared, try_files, written_by
from dear_mpi.cli.run import with_flags, write_json
from dear_mpi.contrib.advise.answer import answer
from dear_mpi.contrib.advise.observe import ITERATIONS, observe
from dear_mpi.contrib.advise.output import rows_of, show_answer, timeline
from dear_mpi.reporting.files import aside
from dear_mpi.reporting.terminal import bar
from dear_mpi.see.timeline import TimelineFiles
from dear_mpi.simulate.settings import Settings

STEPS = 7  # of progress, per number of ranks
SCRIPT = "Unchanged PyTorch script, or FILE.json of --save."
GIVEN = ("ranks", "network", "forward_time", "backward_time", "update_time", "ranks_per_core")
TABLE = flags_of(Settings)
FLAGS = (
    argument("script", Path, SCRIPT, "SCRIPT")
    | argument("arguments", list[str] | None, "Arguments of the script, after --.", "ARGUMENTS", None)
    | {name: TABLE[name] for name in GIVEN}
    | flag("iterations", int, "Iterations to watch; as many are timed between them.", ITERATIONS, min=3, max=1000)
    | flag("save", Path | None, "Write what was seen to FILE.json, for simulate --profile and advise.", metavar="FILE")
    | flag(
        "picture", Path | None, "Draw iterations of DDP and of our fastest into FILE.png, .pdf or .svg.", metavar="FILE"
    )
    | shared("timeline", "json_file")
)


@with_flags(FLAGS, alone="advise")
def advise(flags: Flags) -> None:
    """Example: dear-mpi advise train.py --ranks 16 --network 10gbit,50us -- --epochs 1"""
    written = written_by(flags, "script")
    writers = [TimelineFiles(name, [path]) for name, path in written if name in ("--picture", "--timeline")]
    try_files(written)
    check_files({"SCRIPT": [str(flags["script"])]}, written)
    if "save" in flags and flags["save"].suffix != ".json":
        raise ValueError(f"--save {str(flags['save'])!r} must end in .json: advise takes any other file for a script")
    given = chosen(Settings, {name: flags[name] for name in flags if name in GIVEN})
    settings = Settings(**given)
    settings.check()
    observation = observe(flags["script"], flags.get("arguments") or (), flags.get("iterations", ITERATIONS))
    if "save" in flags:
        observation.write(flags["save"])
    profile = observation.profile
    settings = Settings(**given, profile=profile, models=(profile.model,))
    with aside(flags.get("json_file")) as set_aside, bar(None, STEPS * len(settings.ranks), "predicting") as progress:
        set_aside()
        found = answer(observation, settings, progress)
    write_json(rows_of(found), flags.get("json_file"))
    show_answer(observation, found)
    for write in writers:
        write(timeline(found))
