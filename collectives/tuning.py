"""Which algorithm is the fastest for a collective, a number of ranks and a size: the table behind ``auto``.

auto         the table built in
auto:FILE    one that ``dear-mpi bench --tune FILE`` measured: {"machine": {...}, "rules": [{...}, ...]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

__all__ = [
    "BUILT_IN",
    "SEGMENT_BYTES",
    "SHARED",
    "Rule",
    "default_segment",
    "pick",
    "read_rules",
    "rules_of",
    "write_rules",
]


@dataclass(frozen=True)
class Rule:
    """For full buffers of at most so many bytes (None: of any size), on this number of ranks."""

    collective: str
    ranks: int
    up_to_bytes: int | None
    algorithm: str
    segment_bytes: int

    @property
    def limit(self) -> float:
        return float("inf") if self.up_to_bytes is None else self.up_to_bytes


KINDS: dict[str, tuple[type, ...]] = {
    "collective": (str,),
    "ranks": (int,),
    "up_to_bytes": (int, type(None)),
    "algorithm": (str,),
    "segment_bytes": (int,),
}
SHARED = "shared"  # for ranks that share memory alone, where its rules go before others
SEGMENT_BYTES = 256 * 1024  # fits in a second-level cache with what it is added to; see docs/benchmarks
NETWORK_SEGMENT_BYTES = 60 * 1024  # over TCP, Open MPI announces messages from 64 KiB on, header included, and waits
# Where latency counts, steps do: recursive doubling, then butterflies, then rings, the later the more ranks there are.
KIB, MIB = 1 << 10, 1 << 20
BUILT_IN = tuple(
    Rule(collective, ranks, up_to_bytes, algorithm, SEGMENT_BYTES)
    for collective, ranks, up_to_bytes, algorithm in (
        ("all_reduce", 4, 16 * KIB, "recursive_doubling"),
        ("all_reduce", 4, None, "ring"),
        ("all_reduce", 32, 16 * KIB, "recursive_doubling"),
        ("all_reduce", 32, MIB, "rabenseifner"),
        ("all_reduce", 32, None, "ring"),
        ("all_reduce", 128, 16 * KIB, "recursive_doubling"),
        ("all_reduce", 128, 8 * MIB, "rabenseifner"),
        ("all_reduce", 128, None, "ring"),
        *(
            rule
            for collective in ("reduce_scatter", "all_gather")
            for rule in (
                (collective, 4, 16 * KIB, "bruck"),
                (collective, 4, None, "ring"),
                (collective, 32, 512 * KIB, "bruck"),
                (collective, 32, None, "ring"),
                (collective, 128, 4 * MIB, "bruck"),
                (collective, 128, None, "ring"),
            )
        ),
        *((collective, 4, None, SHARED) for collective in ("all_reduce", "reduce_scatter", "all_gather")),
        *((collective, 4, None, "binomial") for collective in ("broadcast", "reduce")),
    )
)


def default_segment(hosts: Sequence[int]) -> int:
    """Bytes of the largest message, where nobody said otherwise, for ranks on these hosts."""
    return SEGMENT_BYTES if len(set(hosts)) == 1 else NETWORK_SEGMENT_BYTES


def rules_of(spec: str) -> tuple[Rule, ...] | None:
    """The rules behind ``auto`` or ``auto:FILE``; None for the name of an algorithm.

    Raises:
        ValueError: the file is no good.
    """
    name, colon, path = spec.partition(":")
    if name != "auto":
        return None
    return read_rules(Path(path)) if colon else BUILT_IN


def pick(rules: Sequence[Rule], collective: str, ranks: int, nbytes: int) -> Rule:
    """The rule for a case; that of the nearest number of ranks (the smaller of two) where its own is absent.

    Raises:
        ValueError: no rule is about this collective, or none about so large a buffer.

    >>> pick(BUILT_IN, "all_reduce", 3, 1000).algorithm
    'recursive_doubling'
    """
    candidates = [rule for rule in rules if rule.collective == collective]
    if not candidates:
        there = ", ".join(sorted({rule.collective for rule in rules})) or "none"
        raise ValueError(f"no rule is about {collective}, only about: {there}; `dear-mpi bench --tune` adds it")
    nearest = min({rule.ranks for rule in candidates}, key=lambda found: (abs(found - ranks), found))
    fitting = [rule for rule in candidates if rule.ranks == nearest and nbytes <= rule.limit]
    if not fitting:
        raise ValueError(
            f"no rule for {collective} on {nearest} ranks reaches {nbytes} B: its last one needs up_to_bytes null"
        )
    return min(fitting, key=lambda rule: rule.limit)


def read_rules(path: Path) -> tuple[Rule, ...]:
    """
    Raises:
        ValueError: the file is missing or is no such table; the message says where.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"rules {str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"rules {str(path)!r} are no JSON: {error}") from None
    rules = content.get("rules") if isinstance(content, dict) else None
    if not isinstance(rules, list):
        raise ValueError(f'rules {str(path)!r} must be an object with a list "rules"')
    return tuple(rule_of(entry, f"rules {str(path)!r}, entry {number}") for number, entry in enumerate(rules))


def rule_of(entry: Any, place: str) -> Rule:
    """One entry of a file, checked."""
    names = [field.name for field in fields(Rule)]
    if not isinstance(entry, dict) or entry.keys() != set(names):
        raise ValueError(f"{place} must have exactly {', '.join(names)}, not {entry!r}")
    for name, kinds in KINDS.items():
        value = entry[name]
        if type(value) not in kinds or (isinstance(value, int) and value < 1):
            allowed = "a text" if str in kinds else "a whole number from 1 on" + (" or null" if len(kinds) > 1 else "")
            raise ValueError(f"{place}: {name} must be {allowed}, not {value!r}")
    return Rule(**entry)


def write_rules(path: Path, machine: Mapping[str, Any], rules: Sequence[Rule]) -> None:
    """Store a table; sorted, so that two of them can be compared."""
    ordered = sorted(rules, key=lambda rule: (rule.collective, rule.ranks, rule.limit))
    content = {"machine": dict(machine), "rules": [asdict(rule) for rule in ordered]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
