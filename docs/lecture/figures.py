"""The pictures of chapters and slides: what is asked, and what sliders change about it."""

from typing import Any

# A slider: name, label, least, most, step, unit.
RATIO = ["ratio", "All-reduce, in forward passes", 0.5, 8, 0.25, " ×"]
STARTUP = ["startup_ms", "Start-up of a collective", 0, 1, 0.05, " ms"]
RANKS = ["ranks", "Ranks", 2, 16, 1, ""]
FOUR = {"layers": 4, "buckets": 4, "ratio": 3.0, "startup_ms": 0.0}
SIX = FOUR | {"layers": 6, "buckets": 6}


def lanes(title: str, schedules: list[str], given: dict[str, Any] = FOUR) -> dict[str, Any]:
    return {
        "title": title,
        "request": {"ask": "lanes", "schedules": schedules, "given": given},
        "sliders": [RATIO, STARTUP],
    }


def board(title: str, algorithm: str, ranks: int, collective: str = "all_reduce") -> dict[str, Any]:
    request = {"ask": "board", "given": {"name": algorithm, "ranks": ranks, "collective": collective}}
    return {"title": title, "request": request, "sliders": [["ranks", "Ranks", 2, 8, 1, ""]]}


FIGURES: dict[str, dict[str, Any]] = {
    "ring": board("A ring that gathers", "ring", 4, "all_gather"),
    "all-reduce": board("A ring that reduces, then gathers", "ring", 4),
    "curves": {
        "title": "All-reduces by size",
        "request": {"ask": "curves", "given": {"ranks": 8, "alpha_us": 50.0, "gbit": 10.0}},
        "sliders": [RANKS, ["alpha_us", "alpha", 1, 200, 1, " us"], ["gbit", "Bandwidth", 1, 100, 1, " Gbit/s"]],
    },
    "overlap": lanes("Without overlap, and with it", ["sequential", "wfbp"]),
    "dear": lanes("One half under each pass", ["wfbp", "dear"]),
    "eager": lanes("What is urgent goes first", ["dear", "dear-eager"], SIX),
    "cuts": {
        "title": "An iteration by the number of buckets",
        "request": {"ask": "cuts", "given": {"startup_ms": 0.3, "ratio": 3.0}},
        "sliders": [STARTUP, RATIO],
    },
    "full": {
        "title": "The usual route: gradients on both ways, and everybody updates everything",
        "request": {"ask": "route", "given": {"name": "full"}},
        "sliders": [],
    },
    "four": lanes("Four schedules", ["sequential", "wfbp", "dear", "dear-eager"], SIX),
}
SCHEDULE = [RATIO, STARTUP]
SLIDERS: dict[str, list[list[Any]]] = {
    "ring": [["ranks", "Ranks", 2, 8, 1, ""]],
    "overlap": SCHEDULE,
    "dear": SCHEDULE,
    "order": SCHEDULE,
    "break": [["ranks", "Ranks", 2, 8, 1, ""]],
}
# What is said when a number is right.
BECAUSE = {
    "crossing": "Below it 14 latencies decide, above it the bytes: 1.75 n in the ring, 3 n in recursive doubling.",
    "buckets": "Fewer buckets overlap less, more of them pay for more start-ups.",
    "rule": "The reduce-scatter hides under the backward pass; 26.5 ms of the all-gather outlast the forward pass.",
}
