"""Choose an algorithm by collective, number of ranks and size: the table of ``auto``.

auto         the built-in table
auto:FILE    one that ``dear-mpi bench --tune FILE`` measured: {"machine": {...}, "rules": [{...}, ...]}
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, convert
from msgspec.structs import asdict, replace

from dear_mpi.collectives.algorithms.registry import ALGORITHMS, RUNNER, is_installed, runner_of, served_by
from dear_mpi.collectives.lowering.messages import WINDOW
from dear_mpi.collectives.program.json_file import reading

Count = Annotated[int, Meta(ge=1)]


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """For full buffers of at most ``up_to_bytes`` (None: any) on ``ranks`` ranks."""

    collective: str
    ranks: Count
    up_to_bytes: Count | None
    algorithm: str
    segment_bytes: Count

    @property
    def limit(self) -> float:
        return math.inf if self.up_to_bytes is None else self.up_to_bytes

    @property
    def shared(self) -> bool:
        return runner_of(self.algorithm) == "shared"


NAMES = tuple(dict.fromkeys((*ALGORITHMS, *RUNNER)))  # some of RUNNER have no programs
PRIVATE_BYTES = 16 * 1024  # in shared memory, below: one barrier and a copy beat two barriers
SEGMENT_BYTES = 256 * 1024  # fits a second-level cache twice; see docs/benchmarks
NETWORK_SEGMENT_BYTES = 60 * 1024  # over TCP, Open MPI uses rendezvous from 64 KiB on, header included
PACKED_BYTES = 16 * 1024  # on one host: the bytes that are copied twice in the time of a message
WINDOW_BYTES = 1 << 20
MOST_POSTED = 32
# Rules for shared memory come first. Small buffers need few steps: recursive doubling, then butterflies, then rings
# (on more ranks: later).
KIB, MIB = 1 << 10, 1 << 20
GATHERS = {4: 16 * KIB, 32: 512 * KIB, 128: 4 * MIB}  # by ranks: butterflies are faster below
TABLE: dict[tuple[str, int], dict[str, int | None]] = {
    ("all_reduce", 4): {"recursive_doubling": 16 * KIB, "ring": None, "shared": None},
    ("all_reduce", 32): {"recursive_doubling": 16 * KIB, "rabenseifner": MIB, "ring": None},
    ("all_reduce", 128): {"recursive_doubling": 16 * KIB, "rabenseifner": 8 * MIB, "ring": None},
    **{("reduce_scatter", ranks): {"bruck": limit, "ring": None, "shared": None} for ranks, limit in GATHERS.items()},
    **{("all_gather", ranks): {"bruck": limit, "ring": None, "shared": None} for ranks, limit in GATHERS.items()},
    ("broadcast", 4): {"binomial": None, "shared": None},
    ("reduce", 4): {"binomial": None, "shared": None},
    ("all_to_all", 4): {"pairwise": None},
}
BUILT_IN = tuple(
    Rule(collective, ranks, limit, algorithm, SEGMENT_BYTES)
    for (collective, ranks), row in TABLE.items()
    for algorithm, limit in row.items()
)


def default_segment(hosts: Sequence[int]) -> int:
    return SEGMENT_BYTES if len(set(hosts)) == 1 else NETWORK_SEGMENT_BYTES


def window_of(hosts: Sequence[int], segment_bytes: int) -> int:
    """Return how many messages of a lane are posted at a time (docs/decisions/0017).

    Between hosts the link must stay busy while the posting thread waits for a core, for milliseconds. On one host side
    buffers should stay in cache. With rendezvous, more than two posted messages are slower.

    >>> window_of((0, 0), 60 * 1024), window_of((0, 1), 256 * 1024), window_of((0, 1), 60 * 1024)
    (2, 2, 17)
    """
    if len(set(hosts)) == 1 or segment_bytes > NETWORK_SEGMENT_BYTES:
        return WINDOW
    return min(WINDOW_BYTES // segment_bytes, MOST_POSTED)


def packed_of(hosts: Sequence[int]) -> float:
    """Return for how many bytes packing pays if it saves a message (``lowering/messages.py``)."""
    return PACKED_BYTES if len(set(hosts)) == 1 else math.inf


def rules_of(spec: str) -> tuple[Rule, ...] | None:
    name, colon, path = spec.partition(":")
    if name != "auto":
        return None
    return read_rules(Path(path)) if colon else BUILT_IN


def wants_shared(algorithm: str, hosts: Sequence[int], collective: str = "", nbytes: float = math.inf) -> bool:
    """Return whether to allocate a buffer in shared memory, for plans to work in it; in private memory MPI is faster.

    Under ``auto`` a rule decides (without a collective: any).
    """
    if len(set(hosts)) > 1 or nbytes <= PRIVATE_BYTES:
        return False
    rules = rules_of(algorithm)
    if rules is None:
        return runner_of(algorithm) == "shared"
    shared = [rule for rule in rules if rule.shared]
    return any(not collective or (rule.collective == collective and nbytes <= rule.limit) for rule in shared)


def serves(name: str, collective: str) -> bool:
    if runner_of(name) == "native" or rules_of(name) is not None:
        return True
    return collective in served_by(name)


def pick(rules: Sequence[Rule], collective: str, ranks: int, nbytes: int) -> Rule:
    """Return the rule for the nearest number of ranks (the smaller of two); ValueError: none fits.

    >>> pick(BUILT_IN, "all_reduce", 3, 1000).algorithm
    'recursive_doubling'
    """
    candidates = [rule for rule in rules if rule.collective == collective]
    if not candidates:
        there = ", ".join(sorted({rule.collective for rule in rules})) or "none"
        raise ValueError(f"no rule covers {collective}, only: {there}; `dear-mpi bench --tune` adds it")
    nearest = min({rule.ranks for rule in candidates}, key=lambda found: (abs(found - ranks), found))
    fitting = [rule for rule in candidates if rule.ranks == nearest and nbytes <= rule.limit]
    if not fitting:
        case = f"{collective} on {nearest} ranks"
        raise ValueError(f"no rule for {case} reaches {nbytes} B: its last one needs up_to_bytes null")
    return min(fitting, key=lambda rule: rule.limit)


def alike(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Use one algorithm for an all-reduce and its halves, so that both give the same bits.

    It is the all-reduce's or, without halves, the reduce-scatter's.
    """
    halves, all_reduces = ("reduce_scatter", "all_gather"), [rule for rule in rules if rule.collective == "all_reduce"]
    by_messages = [rule for rule in rules if not rule.shared]
    chosen = [rule for rule in rules if rule.collective == "reduce_scatter"] if not all_reduces else []
    for rule in all_reduces:
        algorithm = rule.algorithm
        if not all(serves(algorithm, half) for half in halves):
            algorithm = pick(by_messages, "reduce_scatter", rule.ranks, rule.up_to_bytes or 1 << 62).algorithm
        chosen.append(replace(rule, algorithm=algorithm))
    others = (rule for rule in rules if rule.collective not in ("all_reduce", *halves))
    return (*others, *(replace(rule, collective=each) for rule in chosen for each in ("all_reduce", *halves)))


class Table(Struct):
    rules: tuple[Rule, ...]


def read_rules(path: Path) -> tuple[Rule, ...]:
    with reading("rules", path, "dear-mpi bench --tune") as content:
        rules = convert(content, Table).rules
        for number, rule in enumerate(rules):
            if rule.algorithm not in NAMES and not is_installed(rule.algorithm):  # a data file runs no user's code
                said = f"must be one of {', '.join(NAMES)}, not {rule.algorithm!r}"
                raise ValueError(f"rules[{number}].algorithm {said}")
    return rules


def write_rules(path: Path, machine: Mapping[str, Any], rules: Sequence[Rule]) -> None:
    ordered = sorted(rules, key=lambda rule: (rule.collective, rule.ranks, rule.limit))
    content = {"machine": dict(machine), "rules": [asdict(rule) for rule in ordered]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
