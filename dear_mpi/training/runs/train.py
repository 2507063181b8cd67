"""Train a model with one schedule: the command ``dear-mpi train``."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dear_mpi.collectives.transports.agree import agree, by_rank_0
from dear_mpi.ranks.world import World
from dear_mpi.reporting.files import check_writable
from dear_mpi.reporting.terminal import console
from dear_mpi.training.costs.plan_cost import communication
from dear_mpi.training.declared import options_of
from dear_mpi.training.log.log import Times
from dear_mpi.training.profiles.profiler import Profiler
from dear_mpi.training.recording import Show, recorded, show_runs
from dear_mpi.training.routes.route import Route
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.report import describe, timing
from dear_mpi.training.schedules import own_fusion
from dear_mpi.training.trainer import TrainingError

FILL = 2  # iterations that do not count at the beginning, and when buckets were cut: the very first ends with a flush


@dataclass(frozen=True)
class Saving:
    """Where checkpoints are written, after how many iterations each, and whether to go on from the last one."""

    path: Path
    every: int | None = None
    resume: bool = False

    def facts(self, rank: int) -> dict[str, Any]:
        """What must be equal on all ranks; rank 0 sees that the file can be written."""
        if rank == 0:
            check_writable("--save", self.path)
        return asdict(self) | {"path": str(self.path)}

    def is_due(self, iterations: int, whole: int) -> bool:
        """Whether to write one after so many iterations of a whole run."""
        return iterations == whole or (self.every is not None and iterations % self.every == 0)


def train(
    config: Config,
    world: World,
    progress: Callable[[int, float], object] | None = None,
    saving: Saving | None = None,
    profile: Path | None = None,
    *,
    timeline: Show | None = None,
) -> dict[str, Any]:
    """Train, test, and report. Collective.

    Args:
        config: what the user chose.
        world: the ranks.
        progress: called after each iteration with its number, from 1, and the loss.
        saving: where checkpoints are, if there are any.
        profile: where rank 0 writes what the layers take, if it is to (``profiles/profile.py``).
        timeline: what rank 0 does with the timeline of the last iterations.

    Returns:
        The JSON object of ``dear-mpi train``, the same on all ranks.

    Raises:
        AgreedError: something in ``config`` is not allowed, or the ranks were asked for different things.
        TrainingError: the loss or a gradient is infinite or not a number.
    """
    if saving is not None:
        agree(world.transport, "checkpoint", lambda: saving.facts(world.rank))
    if profile is not None:
        by_rank_0(world.transport, "profile", lambda: check_writable("--profile", profile))
    with Job(config, world, [config.schedule]) as job:
        schedule, tuning = job.schedules[config.schedule], job.decisions.tuning
        network = communication(job.group.fabric, schedule.collectives)
        losses: list[float] = gone_on(job, saving.path) if saving is not None and saving.resume else []
        if len(losses) >= config.iterations:
            raise TrainingError(f"the checkpoint has all of the {config.iterations} iterations: ask for more of them")
        room = config.iterations - len(losses)
        agree(world.transport, "train", lambda: job.decisions.check_room(room, profiled=profile is not None))
        agree(world.transport, "train", lambda: check_rounds(job.group.route, config, saving))

        def behind(iterations: int) -> None:
            if progress is not None:
                progress(iterations, losses[-1])
            if saving is not None and saving.is_due(iterations, config.iterations):
                job.save(saving.path, {"loss": losses, **order_of(config), **settings_of(job)})

        done = iterated(job, losses, behind, profiled=profile is not None)
        job.group.trainers[config.schedule].flush()
        runs = [] if timeline is None else [recorded(job, config.schedule)]
        if profile is not None and done.profiler is not None:
            write_profile(job, done.profiler, profile)
        fusion = own_fusion(job.decisions.fusion, schedule)
        if fusion != config.fusion:
            network = communication(job.group.fabric, schedule.collectives)
        figures = timing(world.transport, schedule, [done.times], network, fill=done.fill, parts=config.accumulate)
        report = describe(job, config.schedule, figures) | {"fusion": fusion}
        report |= {"tuner": config.fusion if tuning.trials else None, "tuned": list(map(asdict, tuning.trials))}
        report |= {"uncounted": min(done.fill, len(done.times) - 1), "loss": losses} | job.outcome()
        if timeline is not None:
            show_runs(job, runs, [report], timeline)
        return report


def check_rounds(route: Route, config: Config, saving: Saving | None) -> dict[str, Any]:
    """See that a run, and all of its checkpoints, end where all ranks have the same values.

    Raises:
        ValueError: one does not.
    """
    for what, count in (("iterations", config.iterations), ("every", saving and saving.every)):
        if count and count % route.period:
            said = f"must be divisible by {route.period}, the iterations of a round of the route {route.name!r}"
            raise ValueError(f"{what} {said}, not {count}")
    return {}


@dataclass
class Iterated:
    """What iterations took, how many of them do not count, and the profiler, if there is one."""

    times: list[Times] = field(default_factory=list)
    fill: int = FILL
    profiler: Profiler | None = None


def iterated(job: Job, losses: list[float], behind: Callable[[int], None], *, profiled: bool) -> Iterated:
    """Collective: the iterations that are left; each adds its loss to ``losses``, and ``behind`` is told their number.

    A profile begins when nothing is to be decided any more.
    """
    name, decisions, done = job.config.schedule, job.decisions, Iterated()
    for iteration in range(len(losses), job.config.iterations):
        settled = decisions.settled
        if profiled and settled and done.profiler is None:
            done.profiler = Profiler(job.group)
        loss, spent = job.iterate(name, *job.batch(iteration))
        losses.append(loss)
        done.times.append(spent)
        done.fill = done.fill if settled else len(done.times) + FILL
        if done.profiler is not None:
            done.profiler.note()
        behind(iteration + 1)
    return done


def order_of(config: Config) -> dict[str, Any]:
    """The settings that decide which examples each iteration has."""
    return {"seed": config.seed, "batch": config.batch, "data": config.data}


def settings_of(job: Job) -> dict[str, Any]:
    """The data, and what else must stay the same, so that a resumed run comes to the bits of one without a break.

    So must the number of ranks, but the checkpoint does not know it.
    """
    config = job.config
    settings = {"model": job.workload.model, "wire": config.wire_name, **asdict(job.options.optimizer)}
    settings |= {name: getattr(config, name) for name, said in options_of(Config).items() if said.decides}
    if config.decay != "none":
        settings["iterations"] = config.iterations
    return {"examples": job.examples_sha256, "settings": settings}


def gone_on(job: Job, path: Path) -> list[float]:
    """Collective: go on from a checkpoint; the losses before it. Rank 0 says what settings have changed.

    Raises:
        TrainingError: it is of a run that had other examples, or had them in another order, or of a script's session.
    """
    notes, order, settings = job.resume(path), order_of(job.config), settings_of(job)
    if not isinstance(notes, dict) or not {"loss", *order} <= notes.keys():
        raise TrainingError(
            f"the checkpoint is of a script: it must say what a run has, its {', '.join(order)} and loss"
        )
    if "examples" in notes:
        del order["data"]  # its name may change
        if notes["examples"] != settings["examples"]:
            what = f"data {notes['data']!r} had the SHA-256 {notes['examples']}, and {job.config.data!r} here has"
            advice = "give --data the file of before, or begin a new run with another --save"
            raise TrainingError(f"the checkpoint is of a run on other data: {what} {settings['examples']}; {advice}")
    for name, value in order.items():
        if notes[name] != value:
            raise TrainingError(f"the checkpoint is of a run with {name} {notes[name]}, not {value}")
    done = job.group.trainers[job.config.schedule].done
    if not isinstance(notes["loss"], list) or len(notes["loss"]) != done:
        raise TrainingError(f"the checkpoint must have the losses of its {done} iterations, not {notes['loss']!r:.99}")
    tell_changes(job.world, notes, settings["settings"])
    return notes["loss"]


def tell_changes(world: World, notes: dict[str, Any], settings: dict[str, Any]) -> None:
    """Let rank 0 say, in one line, which settings differ from the checkpoint's."""
    before = notes.get("settings")
    if not isinstance(before, dict):
        said = ["the checkpoint does not say what data and settings its run had"]
    else:
        both = [name for name in settings if name in before and before[name] != settings[name]]
        said = [f"{name} is {settings[name]}, and was {before[name]}" for name in both]
    if said:
        console(world, stderr=True).print(f"note: the run goes on, but {'; '.join(said)}", markup=False, soft_wrap=True)


def write_profile(job: Job, profiler: Profiler, path: Path) -> None:
    """Collective: write what was measured."""
    config = job.config
    found = profiler.profile(config.model, batch=None if job.batches is None else config.batch)
    by_rank_0(job.world.transport, "profile", lambda: found.write(path))
