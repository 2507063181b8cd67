"""What is right: each check asks the project's own proof, replay, prices and predictions, and says what is missing."""

from collections.abc import Callable
from functools import cache

from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.training.routes.proof import Proof
from dear_mpi.training.schedules.dear import Dear
from docs.lecture.desk.algorithms import ITEMSIZE, Written, seconds_of
from docs.lecture.desk.schedules import Setting, predicted

NEAR = 0.05  # of a number that was read off a picture
CLOSE = 0.02  # to what is possible
EXACT = 1e-6
PRICED = ((2, 4096, 1e-5, 1e-9), (4, 1 << 20, 5e-5, 8e-10), (8, 1 << 16, 2e-5, 1e-10), (5, 5 << 18, 0.0, 1e-9))
SMALL_BYTES = 1 << 10
STARTUP = Setting(layers=16, ratio=3.0, startup_ms=0.3)
CUTS = (1, 2, 4, 8, 16)
# ResNet-50 on 16 ranks and 10 Gbit/s: seconds of the two passes, bytes of gradients, ranks, bytes/s.
FORWARD_S, BACKWARD_S, NBYTES, RANKS, BANDWIDTH = 0.05, 0.1, 102e6, 16, 1.25e9


def near(found: float, due: float, tolerance: float) -> bool:
    return abs(found - due) <= tolerance * abs(due)


def is_a_ring(written: Written) -> str:
    """Chapter 1: an all-gather in which ranks talk to their neighbours alone."""
    if written.fault:
        return ""
    near_by = {1, written.ranks - 1}
    for program in written.programs:
        peers = {(send.peer - program.rank) % written.ranks for step in program.steps for send in step.sends}
        if not peers <= near_by:
            return f"It gathers, but it is no ring: rank {program.rank} sends to others than its neighbours."
    least = written.ranks - 1
    if len(written.programs[0].steps) > least:
        return f"It is a ring, but takes {len(written.programs[0].steps)} steps, where {least} are enough."
    return ""


def prices_a_ring(formula: Callable[..., float]) -> str:
    """Chapter 2: the seconds of a ring's all-reduce, as a formula."""
    for ranks, nbytes, alpha, beta in PRICED:
        due = cost(programs("ring", "all_reduce", ranks), nbytes // ITEMSIZE, ITEMSIZE, Network(alpha, beta)).time_s
        found = formula(ranks, nbytes, alpha, beta)
        if not isinstance(found, int | float) or not near(found, due, EXACT):
            case = f"{ranks} ranks, {nbytes} bytes, alpha {alpha:g} s and beta {beta:g} s per byte"
            said = f"{found:.6g} s" if isinstance(found, int | float) else f"{found!r:.20}"
            return f"For {case} the replay of the ring takes {due:.6g} s; your formula says {said}."
    return ""


@cache
def crossing_bytes() -> float:
    """Where ring and recursive doubling take equally long on 8 ranks, in bytes."""
    low, high = 1 << 10, 1 << 24
    while high - low > 1024:
        middle = (low + high) // 2
        slower = seconds_of("ring", "all_reduce", 8, middle) > seconds_of("recursive_doubling", "all_reduce", 8, middle)
        low, high = (middle, high) if slower else (low, middle)
    return float(high)


def is_the_crossing(kilobytes: float) -> str:
    """Chapter 2: kB at which the ring begins to win."""
    due = crossing_bytes() / 1e3
    if near(kilobytes, due, NEAR):
        return ""
    winner = "the ring" if kilobytes > due else "recursive doubling"
    return f"At {kilobytes:g} kB {winner} is still ahead."


def slower(name: str, than: str, setting: Setting, hint: str) -> str:
    """What is missing to be as fast as one of our schedules."""
    taken_s, due_s = (predicted(each, setting).iteration_s for each in (name, than))
    if taken_s <= due_s * (1 + CLOSE):
        return ""
    return f"It trains, but an iteration takes {taken_s * 1e3:.2f} ms, and {due_s * 1e3:.2f} are possible. {hint}"


def overlaps(name: str) -> str:
    """Chapter 3: as fast as wfbp."""
    hint = "Start the all-reduce of a bucket in after_backward, when it is complete."
    return slower(name, "wfbp", Setting(), hint)


def feeds_the_forward_pass(name: str) -> str:
    """Chapter 4: as fast as dear."""
    hint = "Which layer needs the first bucket, and when? Wait there, and for that bucket alone."
    return slower(name, "dear", Setting(), hint)


def is_eager(name: str) -> str:
    """Chapter 5: as fast as dear-eager."""
    hint = "The wire is idle between reductions: what could it gather there already?"
    return slower(name, "dear-eager", Setting(layers=6, buckets=6), hint)


@cache
def seconds_by_cut() -> dict[int, float]:
    settings = {count: Setting(16, count, STARTUP.ratio, STARTUP.startup_ms) for count in CUTS}
    return {count: predicted("dear", setting).iteration_s for count, setting in settings.items()}


def is_the_best_cut(count: float) -> str:
    """Chapter 6: how many buckets are the fastest."""
    by_cut = seconds_by_cut()
    if count not in by_cut:
        return f"Take one of {', '.join(map(str, CUTS))}."
    best = min(by_cut, key=lambda each: by_cut[each])
    if count == best:
        return ""
    why = "too few of them overlap" if count < best else "start-ups take the time"
    return f"{count:g} buckets take {by_cut[int(count)] * 1e3:.2f} ms: {why}."


def sends_values(proof: Proof) -> str:
    """Chapter 7: each rank updates its shard, and values travel back."""
    if proof.state != "shard":
        return "It trains, but every rank updates all parameters. Let each update its shard: Update(shard=True)."
    return "" if proof.exact and proof.alike else "It trains, but not to the bits of full."


def breaks_on_three(written: Written) -> str:
    """Chapter 8: right on two ranks, wrong on three."""
    try:
        verify(programs(written.name, "all_gather", 2))
    except ProgramError as error:
        return f"It already breaks on 2 ranks: {error}."
    try:
        verify(programs(written.name, "all_gather", 3))
    except ProgramError:
        return ""
    return "It is still right on 3 ranks: break it."


def wins_with_small_buffers(written: Written) -> str:
    """Chapter 8: an all-reduce of 1 KiB on 8 ranks, at least twice as fast as the ring."""
    if "all_reduce" not in written.serves:
        return f"It serves {', '.join(written.serves)}; write an all_reduce, an all_gather or a broadcast."
    ours, theirs = (
        written.seconds(SMALL_BYTES, "all_reduce"),
        seconds_of("ring", "all_reduce", written.ranks, SMALL_BYTES),
    )
    if ours <= theirs / 2:
        return ""
    return f"Yours takes {ours * 1e6:.0f} us for 1 KiB, the ring {theirs * 1e6:.0f}: be at least twice as fast."


def is_the_bound(milliseconds: float) -> str:
    """Chapter 9: the bound of dear for a given model and cluster."""
    half_s = (RANKS - 1) / RANKS * NBYTES / BANDWIDTH
    due = 1e3 * Dear.bound(FORWARD_S, BACKWARD_S, {"reduce_scatter": half_s, "all_gather": half_s})
    if near(milliseconds, due, NEAR / 5):
        return ""
    sent = f"a reduce-scatter of 102 MB takes {half_s * 1e3:.1f} ms, and so does an all-gather"
    return f"Not {milliseconds:g} ms. On this network {sent}. Which passes do they hide under?"
