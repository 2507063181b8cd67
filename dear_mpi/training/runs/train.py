"""Train a model with one schedule: the command ``dear-mpi train``."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from dear_mpi.collectives.program.errors import RanksLost
from dear_mpi.collectives.transports.agree import agree, said_by_rank_0
from dear_mpi.ranks.clock import CommonClock
from dear_mpi.ranks.world import World
from dear_mpi.reporting.files import check_writable, is_plain
from dear_mpi.reporting.terminal import note
from dear_mpi.training.events import KEPT, Times
from dear_mpi.training.events.profiler import Profiler
from dear_mpi.training.events.recorder import Recorder, Show
from dear_mpi.training.events.spans import Recording
from dear_mpi.training.fabric.plan_cost import communication
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job, describe, timing
from dear_mpi.training.schedules import own_fusion
from dear_mpi.training.trainer import TrainingError

# A resumed run reaches the same bits with these settings, the model, wire format, optimiser, and as many ranks (or
# ``invariant``).
DECIDES = "clip loss_scale weights fusion algorithm accumulate invariant decay warmup context"
FILL = 2  # uncounted iterations at first and after a cut


@dataclass(frozen=True)
class Saving:
    """Choose where and how often to write checkpoints, and whether to resume."""

    path: Path
    every: int | None = None
    resume: bool = False

    def facts(self, rank: int) -> dict[str, Any]:
        """Return the facts that ranks compare; rank 0 checks the file."""
        if rank == 0:
            check_writable("--save", self.path)
            if not is_plain(self.path):
                raise ValueError(f"--save {str(self.path)!r} is no file that a checkpoint can be read from again")
        return asdict(self) | {"path": str(self.path)}


class Observer(Protocol):
    """Observe a job that trains, and add to its report; classes derive from it."""

    kept: int  # iterations that its recording needs

    def look(self, number: int) -> None:
        """Look at the iteration that has ended, from 1. Collective."""

    def found(self, name: str, recordings: Sequence[Recording], *, parts: int) -> Any:
        """Return a part of the report, after the last iteration. Collective.

        Args:
            name: of the run.
            recordings: of all ranks, if there is a timeline; otherwise the observer begins with a flush.
            parts: of each batch.
        """


Observe: TypeAlias = Callable[[Job, int, int, CommonClock | None], Observer]
"""Collective, before the iterations: makes an observer of a job, its number of iterations, how many of these do not
count, and the timeline's clock, if any. An extra's flag of ``train`` leads to such a class, with
``show(console, found)``."""


def train(
    config: Config,
    world: World,
    progress: Callable[[int, float], object] = lambda number, loss: None,
    saving: Saving | None = None,
    profile: Path | None = None,
    *,
    timeline: Show | None = None,
    observers: Mapping[str, Observe] = MappingProxyType({}),
    elastic: Callable[[RanksLost], object] | None = None,
) -> dict[str, Any]:
    """Train, test, and return the JSON object of ``dear-mpi train``, equal on all ranks. Collective.

    Args:
        progress: called after each iteration with its number, from 1, and the loss.
        profile: file for the layer times (``training/events/profile.py``).
        timeline: processes the timeline of the last iterations, on rank 0.
        observers: by the keys of their results in the report.
        elastic: outlive ranks, and call this with each loss; without profile, timeline and observers.

    Raises:
        AgreedError: a setting is not allowed, or the ranks were asked for different things.
        TrainingError: the loss or a gradient is infinite or not a number.
    """
    if saving is not None:
        agree(world.transport, "checkpoint", lambda: saving.facts(world.rank))
    if profile is not None:
        said_by_rank_0(world.transport, "profile", lambda: check_writable("--profile", profile))
    recorder, name = None if timeline is None else Recorder(world, timeline), config.schedule
    with Job(config, world, [name], elastic=elastic is not None) as job:
        losses: list[float] = resumed(job, saving.path) if saving is not None and saving.resume else []
        course = Course(job, saving, progress, losses, profiled=profile is not None)
        done, whole = course.done, config.iterations
        if done >= whole:
            raise TrainingError(f"the checkpoint has all of the {whole} iterations: ask for more of them")
        agree(world.transport, "train", lambda: job.decisions.check_room(whole, done=done, profiled=course.profiled))
        if elastic is not None:
            return outlive(course, elastic)
        clock = recorder.clock if recorder else None
        observing = {key: observe(job, whole - done, FILL, clock) for key, observe in observers.items()}
        course.observers = observing.values()
        course.run()
        kept = max((each.kept for each in observing.values()), default=KEPT)
        recordings = recorder.keep(job, name, kept=kept) if recorder else []
        if profile is not None and course.profiler is not None:
            measured = course.profiler.profile(config.model, batch=None if job.batches is None else config.batch)
            said_by_rank_0(world.transport, "profile", lambda: measured.write(profile))
        report = course.report()
        report |= {key: each.found(name, recordings, parts=job.group.passes) for key, each in observing.items()}
        if recorder is not None:
            recorder.show([report])
        return report


@dataclass
class Course:
    """Run a job's iterations, parts of which an elastic job repeats; ``losses`` are those before a checkpoint."""

    job: Job
    saving: Saving | None
    progress: Callable[[int, float], object]
    losses: list[float]
    profiled: bool = False
    times: list[Times] = field(default_factory=list)
    profiler: Profiler | None = None
    observers: Iterable[Observer] = ()

    def __post_init__(self) -> None:
        self.done, self.fill = len(self.losses), FILL

    def run(self) -> None:
        """Train until the last iteration is complete. Collective."""
        job, name = self.job, self.job.config.schedule
        while (number := len(self.losses) + 1) <= job.config.iterations:
            settled = not job.decisions.due(name)
            if self.profiled and settled:
                self.profiler = self.profiler or Profiler(job.group)
            loss, spent = job.iterate(name, *job.batch(number - 1))
            self.losses.append(loss)
            self.times.append(spent)
            if not settled:
                self.fill = len(self.times) + FILL
            if self.profiler is not None:
                self.profiler.note()
            self.progress(number, loss)
            begin_s = time.perf_counter()
            for each in self.observers:
                each.look(number)
                looked_s = time.perf_counter() - begin_s
                self.times[-1] = spent._replace(iteration_s=spent.iteration_s + looked_s)
            self.save()
        job.flush()  # before collectives on the same memory are timed

    def save(self) -> None:
        """Write a checkpoint, if one is due."""
        number, whole = len(self.losses), self.job.config.iterations
        if self.saving is not None and (number == whole or number % (self.saving.every or whole) == 0):
            self.job.save(self.saving.path, {"loss": self.losses, **facts_of(self.job)})

    def report(self) -> dict[str, Any]:
        """Return the report. Collective."""
        job, config = self.job, self.job.config
        decisions, fabric, schedule = job.decisions, job.group.fabric, job.schedules[config.schedule]
        trials, parts = decisions.tuning.trials, job.group.passes
        network = communication(fabric, schedule.collectives)
        figures = timing(job.world.transport, schedule, [self.times], network, fill=self.fill, parts=parts)
        report = describe(job, config.schedule, figures, fabric.chosen(schedule.collectives)) | {
            "fusion": own_fusion(decisions.fusion, schedule),
            "tuner": config.fusion if trials else None,
            "tuned": [asdict(trial) for trial in trials],
            "uncounted": min(self.fill, len(self.times) - 1),
            "loss": self.losses,
            **job.outcome(),
        }
        if fabric.tally[False]:
            few = f"{fabric.tally[False]} of {sum(fabric.tally)} buckets"
            note(job.world, f"gradients of {few} did not fit into codes, and travelled whole")
        return report


def outlive(course: Course, tell: Callable[[RanksLost], object]) -> dict[str, Any]:
    """Run to the end with the survivors, and return the report with the log of members. Collective."""
    survival = course.job.survival

    def whole() -> dict[str, Any]:
        if len(course.losses) > course.done:  # a death may have been in ``save``
            course.save()
        course.run()
        return course.report()

    def again(lost: RanksLost) -> None:
        assert lost.iteration is not None, "the session has been repaired"
        del course.losses[lost.iteration :]
        del course.times[lost.iteration - course.done :]
        tell(lost)

    return survival.outlive(whole, again) | {"members": survival.report}


def facts_of(job: Job) -> dict[str, Any]:
    """Describe a run for its checkpoint: its examples, their order, and what decides its bits."""
    config = job.config
    settings = {"model": job.workload.model, "wire": config.wire_name, **asdict(job.options.optimizer)}
    settings |= {name: getattr(config, name) for name in DECIDES.split()}
    if config.decay != "none":
        settings["iterations"] = config.iterations
    order = {"seed": config.seed, "batch": config.batch, "data": config.data}
    return order | {"examples": job.examples_sha256, "settings": settings}


def resumed(job: Job, path: Path) -> list[float]:
    """Resume from a checkpoint and return the losses before it; rank 0 prints changed settings. Collective.

    Raises TrainingError if it is a script's, or of other examples or another order.
    """
    before, now = job.resume(path), facts_of(job)
    if not isinstance(before, dict) or not {"loss", *now} <= before.keys():
        raise TrainingError(f"the checkpoint is of a script: a run's has its loss, {', '.join(now)}")
    if before["examples"] != now["examples"]:
        what = f"data {before['data']!r} had the SHA-256 {before['examples']}, and {now['data']!r} here has"
        advice = "give --data the file of before, or begin a new run with another --save"
        raise TrainingError(f"the checkpoint is of a run on other data: {what} {now['examples']}; {advice}")
    for name in ("seed", "batch"):
        if before[name] != now[name]:
            raise TrainingError(f"the checkpoint is of a run with {name} {before[name]}, not {now[name]}")
    old, settings = before["settings"], now["settings"]
    if changed := [
        f"{name} is {value}, and was {old[name]}"
        for name, value in settings.items()
        if name in old and value != old[name]
    ]:
        note(job.world, f"the run goes on, but {'; '.join(changed)}")
    losses: list[float] = before["loss"]
    return losses
