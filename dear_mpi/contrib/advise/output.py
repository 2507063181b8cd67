import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD

from dear_mpi.collectives.program.hosts import format_rate
from dear_mpi.contrib.advise.answer import CODE, FASTEST, PAYS, Answer, Row, bandwidth, traced
from dear_mpi.contrib.advise.observation import Observation
from dear_mpi.reporting.terminal import console, table
from dear_mpi.reporting.units import plural
from dear_mpi.simulate.table import ORIGINS, gain, ms, timeline_of
from dear_mpi.training.events.spans import Timeline

WORTH = 0.02  # least gain of a schedule, of an iteration
TELL = 0.1  # of an iteration: less time outside layers is not reported
TELL_HOOKS = 0.05


def show_answer(observation: Observation, answers: Sequence[Answer]) -> None:
    screen, profile, seen = console(), observation.profile, observation.observed
    forward_s, backward_s = profile.passes_s
    parts = f" in {profile.accumulate} parts" if profile.accumulate > 1 else ""
    screen.print(
        f"{profile.model} on one rank ({profile.device}): {ms(seen.iteration_s)} ms an iteration{parts}; seen: forward "
        f"{ms(forward_s)}, backward {ms(backward_s)}, updates {ms(observation.update_s)}, outside layers "
        f"{ms(profile.rest_s)}: {observation.sum_s / seen.iteration_s:.0%} of it.",
    )
    for answer in answers:
        screen.print(table_of(answer))
        screen.print(paragraph(answer), assumed(answer), sep="\n")
    found = list(unseen(observation))
    screen.print("What it could not see:" if found else "", *(f"  {each}" for each in found), sep="\n")


def table_of(answer: Answer) -> Any:
    columns = {
        "schedule": lambda row: row.name,
        "fusion": lambda row: str(row.simulated.row["fusion"]),
        "iteration": lambda row: ms(row.iteration_s),
        "exposed": lambda row: ms(exposed_s(answer, row)),
        "/ DDP": lambda row: f"{answer.ddp.iteration_s / row.iteration_s:.3f}",
    }
    caption = "ms of an iteration; exposed: waiting for communication"
    title = f"Predicted, {plural(answer.ranks, 'rank')}, {answer.ddp.simulated.row['network']}"
    left = ("schedule", "fusion")
    return table([answer.rows], columns, left=left, title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1))


def exposed_s(answer: Answer, row: Row) -> float:
    """Seconds of an iteration beyond a rank's work without communication."""
    own = answer.ours[0].simulated.prediction
    if row is answer.ddp:
        return row.iteration_s - (own.forward_s + own.backward_s + own.update_s + own.rest_s)
    return row.simulated.prediction.exposed_s


def rows_of(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Rows for ``--json``: ``simulate``'s keys, the line's name, and the iteration's seconds."""
    found = []
    for answer in answers:
        below = answer.pays_below
        said = {"int8_pays_below_bits_per_s": below if below < float("inf") else None, "twice_s": answer.twice_s}
        said["observed_s"] = answer.observation.observed.iteration_s
        for row in answer.rows:
            speedup = answer.ddp.iteration_s / row.iteration_s
            own = {"line": row.name, "iteration_s": row.iteration_s, "speedup_vs_ddp": speedup}
            found.append(row.simulated.row | own | said)
    return found


def timeline(answers: Sequence[Answer]) -> Timeline:
    first = answers[0]
    return timeline_of(traced([first.ddp, first.best]))


def paragraph(answer: Answer) -> str:
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
    ddp_s, best = answer.ddp.iteration_s, answer.best
    said = f"{answer.ddp.name}: {ms(ddp_s)} ms an iteration"
    if answer.unsynced is not None:
        said += f" (with no_sync for all parts but the last: {ms(answer.unsynced.iteration_s)})"
    faster = f"{ddp_s / best.iteration_s:.2f} times as fast"
    gains = faster if gain(ddp_s, best.iteration_s) >= WORTH else "no schedule gains enough to change anything"
    return f"{said}; {best.name} with fusion {best.simulated.row['fusion']}: {ms(best.iteration_s)} ({gains})."


def codes(answer: Answer) -> str:
    below, now = answer.pays_below, bandwidth(answer.best.simulated)
    if not below:
        return f"{CODE} does not pay, on slower links neither."
    taken = f" ({ms(answer.coded.iteration_s)} ms here)" * (now < below)
    if math.isinf(below):
        return f"{CODE} pays{taken}, on links of {format_rate(FASTEST / 8)}, too."
    return f"Below {format_rate(below / 8, digits=2)} {CODE} pays, by more than {PAYS:.0%} of an iteration{taken}."


def assumed(answer: Answer) -> str:
    row, wrapped = answer.ddp.simulated.row, answer.observation.observed.wrapped
    network = (
        f"an all-reduce is a ring on {row['network']} ({ORIGINS[row['network_origin']]}), as gloo's and NCCL's are"
    )
    buckets = "buckets as the script asks for them" if wrapped is not None else "buckets of 1 MiB and then 25 MiB"
    codes = f"; {CODE} takes what it takes a core of a CPU" * (answer.observation.profile.device != "cpu")
    return f"Assumed: {network}; DDP with {buckets}{codes}; each rank has a batch like this one, and is as fast."


def unseen(observation: Observation) -> Iterator[str]:
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
