"""Assemble an observation: a profile of one rank, with parts that add up."""

from collections import Counter
from collections.abc import Sequence
from math import prod
from statistics import fmean, median, quantiles

from dear_mpi.contrib.advise.divided import AFTER, BACKWARD, BEFORE, FORWARD, LOSS, UPDATE, Divided, means, usual
from dear_mpi.contrib.advise.observation import Observation, Observed
from dear_mpi.contrib.advise.observed import Seen, Watched
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.training.events.profile import Profile, Tensor, Use

USUAL_DTYPE = "fp32"
MOST_HOOK_S = 1e-5  # per event: a hook takes 2 to 10 us; more is noise


def assemble(watched: Watched) -> Observation:
    """Raise ValueError if no gradient came, or a batch has too many parts."""
    iterations = usual(watched.watched)
    first, plain_s = iterations[0], sorted(watched.plain_s)
    if not first.came or not first.order:
        raise ValueError(f"{watched.model}: no gradient came to a layer in the iterations that were watched")
    watched_s, iteration_s = median(each.length_s for each in iterations), median(plain_s)
    moments = fmean(each.marks.total() for each in iterations)
    took = means(iterations, min(MOST_HOOK_S, max(0.0, watched_s - iteration_s) / moments))
    rest = {name: took.get((name, 0), 0.0) for name in (BEFORE, LOSS, AFTER)}
    tensors = tensors_of(watched.tensors, first)
    trained = sum(prod(watched.tensors[number].shape) for number in first.came)
    dtype, said = dtype_of([watched.tensors[number] for number in first.came])
    profile = Profile(
        model=watched.model,
        device=watched.device,
        ranks=1,
        rank=0,
        batch=None,
        accumulate=first.parts,
        dtype=dtype,
        wire=dtype,
        schedule="sequential",
        iterations=len(iterations),
        update_s_per_element=took.get((UPDATE, 0), 0.0) / max(1, trained),
        rest_s=sum(rest.values()),
        uses=tuple(
            Use(
                watched.names[use],
                tuple(Tensor(key, watched.tensors[key].shape) for key in tensors[use]),
                took.get((FORWARD, use), 0.0),
                took.get((BACKWARD, use), 0.0),
            )
            for use in first.order
        ),
    )
    profile.check()
    unlike = len(watched.watched) - len(iterations)
    said += [f"{unlike} of {len(watched.watched)} iterations ran other layers, and do not count"] * bool(unlike)
    low_s, _, high_s = quantiles(plain_s, n=4) if len(plain_s) > 1 else plain_s * 3
    observed = Observed(
        iteration_s=iteration_s,
        low_s=low_s,
        high_s=high_s,
        watched_s=watched_s,
        before_s=rest[BEFORE],
        loss_s=rest[LOSS],
        after_s=rest[AFTER],
        wrapped=watched.wrapped,
        threads=watched.threads,
        notes=(*watched.notes, *said),
    )
    return Observation(profile, observed)


def tensors_of(tensors: Sequence[Seen], first: Divided) -> dict[int, list[int]]:
    """Return the tensors of each layer call; unassigned ones go to the call during which their gradient came."""
    found: dict[int, list[int]] = {use: [] for use in first.order}
    for number in sorted(first.came):
        came = first.came[number] if first.came[number] in found else first.order[0]
        for use in [each for each in tensors[number].uses if each in found] or [came]:
            found[use].append(number)
    return found


def dtype_of(tensors: Sequence[Seen]) -> tuple[str, list[str]]:
    """Return the most common type by elements, and a note if there are others."""
    counts = Counter[str]()
    for each in tensors:
        counts[each.dtype] += prod(each.shape)
    dtype = next((name for name, _ in counts.most_common() if name in DTYPES), USUAL_DTYPE)
    others = sorted(set(counts) - {dtype})
    return dtype, [f"parameters of {', '.join(others)} are taken for {dtype}"] * bool(others)
