"""The answer in words: a paragraph, and what could not be seen."""

import math
from collections.abc import Iterator

from dear_mpi.advise.answer import CODE, FASTEST, PAYS, Answer, bandwidth
from dear_mpi.advise.observation import Observation
from dear_mpi.collectives.program.hosts import format_rate
from dear_mpi.reporting.units import plural
from dear_mpi.simulate.gains import gain, ms
from dear_mpi.simulate.table import ORIGINS

WORTH = 0.02  # of an iteration: a schedule that gains less is not worth a change
TELL = 0.1  # of an iteration: what takes less outside layers is not told
TELL_HOOKS = 0.05


def paragraph(answer: Answer) -> str:
    """What an iteration takes, and what would help."""
    base, row = answer.ddp.simulated.base, answer.ddp.simulated.row
    profile = answer.observation.profile
    parts = profile.accumulate if answer.ddp.simulated.row["accumulate"] == 1 else 1
    forward_s, backward_s = parts * base.forward_s, parts * base.backward_s
    said = [
        f"{profile.model} on {plural(answer.ranks, 'rank')} and {row['network']}: all-reduce takes "
        f"{ms(answer.reduce_s)} ms{' after each part' * (parts > 1)}, forward {ms(forward_s)}, backward "
        f"{ms(backward_s)}.",
        iterations(answer),
        f"Twice the bandwidth would give {ms(answer.twice_s)} ms under {answer.best.name}.",
        codes(answer),
    ]
    return " ".join(filter(None, said))


def iterations(answer: Answer) -> str:
    """Milliseconds of an iteration, of DDP and of the fastest of ours."""
    ddp_s, best = answer.ddp.iteration_s, answer.best
    said = f"{answer.ddp.name}: {ms(ddp_s)} ms an iteration"
    if answer.unsynced is not None:
        said += f" (with no_sync for all parts but the last: {ms(answer.unsynced.iteration_s)})"
    faster = f"{ddp_s / best.iteration_s:.2f} times as fast"
    gains = faster if gain(ddp_s, best.iteration_s) >= WORTH else "no schedule gains enough to change anything"
    return f"{said}; {best.name} with fusion {best.simulated.row['fusion']}: {ms(best.iteration_s)} ({gains})."


def codes(answer: Answer) -> str:
    """Where the code pays."""
    below, now = answer.pays_below, bandwidth(answer.best.simulated)
    if not below:
        return f"{CODE} does not pay, on slower links neither."
    taken = f" ({ms(answer.coded.iteration_s)} ms here)" * (now < below)
    if math.isinf(below):
        return f"{CODE} pays{taken}, on links of {format_rate(FASTEST / 8)}, too."
    return f"Below {format_rate(below / 8, digits=2)} {CODE} pays, by more than {PAYS:.0%} of an iteration{taken}."


def assumed(answer: Answer) -> str:
    """What stands behind the figures."""
    row, wrapped = answer.ddp.simulated.row, answer.observation.observed.wrapped
    network = (
        f"an all-reduce is a ring on {row['network']} ({ORIGINS[row['network_origin']]}), as gloo's and NCCL's are"
    )
    buckets = "buckets as the script asks for them" if wrapped is not None else "buckets of 1 MiB and then 25 MiB"
    codes = f"; {CODE} takes what it takes a core of a CPU" * (answer.observation.profile.device != "cpu")
    return f"Assumed: {network}; DDP with {buckets}{codes}; each rank has a batch like this one, and is as fast."


def unseen(observation: Observation) -> Iterator[str]:
    """What could not be seen, as far as there is any of it."""
    profile, seen = observation.profile, observation.observed
    outside_s = profile.rest_s
    if profile.device == "cpu":
        yield (
            f"no GPU was used: the seconds are those of this CPU with {plural(seen.threads, 'thread')} "
            "(OMP_NUM_THREADS; torchrun gives each of several ranks 1); --forward-time scales them to another machine"
        )
    if outside_s > TELL * seen.iteration_s:
        yield (
            f"{outside_s / seen.iteration_s:.0%} of the iteration is in no layer: {ms(seen.before_s)} ms before the "
            f"forward pass (data), {ms(seen.loss_s)} between the passes (the loss), {ms(seen.after_s)} after them; "
            "nothing here hides it"
        )
    if seen.high_s - seen.low_s > TELL * seen.iteration_s:
        yield f"iterations differ: half of them take {ms(seen.low_s)} to {ms(seen.high_s)} ms"
    if seen.watched_s > (1 + TELL_HOOKS) * seen.iteration_s:
        yield f"watched iterations took {ms(seen.watched_s)} ms, others {ms(seen.iteration_s)}: so shares are less sure"
    if profile.accumulate > 1 and seen.wrapped is None:
        yield f"each batch has {profile.accumulate} parts: DDP is taken with no_sync for all but the last"
    if seen.wrapped is None:
        yield (
            "DDP did not run on the one rank that was watched: its default buckets are assumed, and its own work "
            "(copies into buckets) is not in these figures"
        )
    elif seen.wrapped.unlike:
        yield f"DDP has {', '.join(seen.wrapped.unlike)}: what that changes is not predicted"
    yield from seen.notes
