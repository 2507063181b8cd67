"""Measure a profile of a session while it trains:

    profiler = Profiler(session)
    for x, targets in batches:
        session.step(x, targets)
        profiler.note()
    profile = profiler.profile("my model")

The layers are not slowed down: the trainer has the marks around them anyway. Each update gets two more, until the
profile is there.

Half of the iterations count: the ones of middle length, without their waits. Their means add up to the time of an
iteration. Medians of each layer alone would not, where a layer takes now more, now less: synthetic layers save up short
times until a sleep is worth it, so the medians of most are 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.models.layer import layer_name
from dear_mpi.ranks.streams import Stream
from dear_mpi.training.line.bound import BoundBucket
from dear_mpi.training.profiles.profile import Profile, Tensor, Use

if TYPE_CHECKING:
    from dear_mpi.training.session import Session

__all__ = ["Profiler"]

WARM = 2  # iterations that do not count, if there are more: the first one ends with a flush
MOST = 1000  # iterations that are kept: the last ones


class Timed:
    """A call with marks around it, of the stream that it works on."""

    def __init__(self, call: Callable[..., object], stream: Stream) -> None:
        self.call, self.stream = call, stream
        self.pairs = deque[tuple[Any, Any]](maxlen=MOST)  # which another thread may append to

    def __call__(self, *args: Any) -> None:
        begin = self.stream.mark()
        self.call(*args)
        self.pairs.append((begin, self.stream.mark()))

    def seconds(self) -> list[float]:
        """Of each call since this was asked last."""
        return [self.stream.seconds(*self.pairs.popleft()) for _ in range(len(self.pairs))]


class Profiler:
    """Collects what iterations of a session take. Only ``profile`` is collective, and it ends the profiler.

    Make one before the iterations, and after the last ``session.cut``: buckets that are cut later are not timed.

    Args:
        schedule: the name of the schedule that is measured; the first of the session if it is not given.
    """

    def __init__(self, session: Session, schedule: str | None = None) -> None:
        self.session, self.schedule = session, schedule or next(iter(session.schedules))
        self.trainer, streams = session.trainers[self.schedule], session.streams
        self.samples = deque[Array](maxlen=MOST)
        self.noted, self.over = 0, False
        self.timed: list[tuple[BoundBucket, Timed]] = []
        for bound in session.fabric.bound.values():
            call = Timed(bound.apply, streams.communication if session.options.sharded else streams.compute)
            self.timed.append((bound, call))
            bound.apply = call

    def note(self) -> None:
        """Keep what the last iteration took.

        Raises:
            ValueError: the profile was made, and updates are not timed any more.
        """
        if self.over:
            raise ValueError("the profile was made: for another one, make a new Profiler")
        parts, times = self.trainer.accumulate, self.trainer.times
        forward_s, backward_s = (np.reshape(each, (parts, -1)).sum(axis=0) for each in self.trainer.uses_s)
        elements, update_s = 0, 0.0
        for bound, call in self.timed:
            found = call.seconds()
            elements, update_s = elements + bound.own.size * len(found), update_s + sum(found)
        rest_s = times.iteration_s - times.forward_s - times.backward_s - times.exposed_s
        if not self.session.options.sharded:  # where they are, updates are on another thread
            rest_s -= update_s
        length_s = times.iteration_s - times.exposed_s
        last = [update_s / max(1, elements), max(0.0, rest_s), length_s]
        sample = np.concatenate([forward_s, backward_s[::-1], last])
        if self.noted == WARM:
            self.samples.clear()
        self.samples.append(sample)
        self.noted += 1

    def profile(self, model: str, *, batch: int | None = None) -> Profile:
        """Collective: the profile of the rank that is busy longest, the same on all ranks.

        Args:
            model: its name.
            batch: the examples of an iteration, of the whole job.

        Raises:
            ValueError: no iteration was noted.
        """
        if not self.samples:
            raise ValueError("a profile needs an iteration, and note() after it")
        self.leave()
        session, uses = self.session, len(self.session.uses)
        own: list[float] = middle_half(np.array(self.samples)).mean(axis=0).tolist()
        ranks: list[list[float]] = session.world.transport.gather_values(own)
        lengths = [seconds[-1] for seconds in ranks]
        rank = lengths.index(max(lengths))
        *layers_s, update_s, rest_s, _ = ranks[rank]
        return Profile(
            model=model,
            device=session.options.device,
            ranks=session.world.size,
            rank=rank,
            batch=batch,
            accumulate=session.options.accumulate,
            dtype=name_of(session.arena.values.dtype),
            wire=name_of(session.arena.wire.dtype),
            schedule=self.schedule,
            iterations=len(self.samples),
            update_s_per_element=update_s,
            rest_s=rest_s,
            uses=tuple(self.use(number, layers_s[number], layers_s[uses + number]) for number in range(uses)),
        )

    def leave(self) -> None:
        """Take the marks around updates away."""
        for bound, call in self.timed:
            if bound.apply is call:
                bound.apply = call.call
        self.over = True

    def use(self, number: int, forward_s: float, backward_s: float) -> Use:
        """A use of a layer, with its place on the line."""
        layout, layer = self.session.layout, self.session.uses[number].layer
        tensors = tuple(Tensor(tensor, layout.shapes[tensor]) for tensor in layout.uses[number])
        return Use(layer_name(layer, number), tensors, forward_s, backward_s)


def middle_half(samples: Array) -> Array:
    """The rows without a quarter of them at either end, in the order of their last column.

    >>> middle_half(np.array([[3.0], [9.0], [1.0], [2.0]])).tolist()
    [[2.0], [3.0]]
    """
    ordered, quarter = samples[samples[:, -1].argsort(kind="stable")], len(samples) // 4
    half: Array = ordered[quarter : len(samples) - quarter]
    return half


def name_of(dtype: np.dtype[Any]) -> str:
    """The name of a type on the command line."""
    return next(name for name, each in DTYPES.items() if each == dtype)
