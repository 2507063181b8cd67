"""Parse users' texts, such as ``25MB``, ``10gbit,50us`` and lists, and format sizes and columns.

Sizes are binary, as in nccl-tests: 1 KB = 1 KiB = 1024 bytes. Bandwidths are decimal: 10gbit = 1e10 bits/s. Units are
required. A network is one link, or two, inside hosts and between them:

INSIDE/BETWEEN,hosts=N       N hosts of equally many ranks, one after the other
INSIDE/BETWEEN,per_host=N    N ranks on each host but the last
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, repeat, takewhile
from operator import mul
from typing import TYPE_CHECKING, TypeVar

from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.collectives.program.hosts import Blocks
from dear_mpi.collectives.program.user_file import WithExtras
from dear_mpi.kernels.lookup import lookup

if TYPE_CHECKING:
    from dear_mpi.collectives.transports.emulated import Link

MOST_SLOWER = 1000  # times
BYTES = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30}
SHORT_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}  # as in OSU and nccl-tests
# As vendors write: 400Gbps, 25GB/s. B is a byte and b a bit. M, G and T may be small only before "ps".
PER_SECOND = re.compile(r"(.*[0-9.])\s*(?:([kKMGT])(b|bit|B)/s|([kKmMgGtT])(b|B)ps)\s*")
BETWEEN_LINKS = re.compile(r"/(?!s(?:[,/]|$))")
BANDWIDTH = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12, "gbe": 1e9}  # 10GbE is 10 Gbit/s
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
MOST_SECONDS = 86400.0  # s, of anything in an iteration: system clocks cannot wait for 1e10
LEAST_BANDWIDTH = 1.0  # bytes/s of a link


def parse(what: str, text: str, units: dict[str, float] | dict[str, int], example: str, *, zero: bool = True) -> float:
    """Parse a non-negative number with a unit; zero is refused unless ``zero``."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in units:
        lacks = "has no unit" if match and not match[2] else "cannot be read"
        raise ValueError(
            f"{what} {text!r} {lacks}: write it like {example}; units are {', '.join(filter(None, units))}"
        )
    value = float(match[1]) * units[match[2]]
    if not math.isfinite(value):
        raise ValueError(f"{what} {text!r} is too large")
    if not value and not zero:
        raise ValueError(f"{what} {text!r} must be above zero")
    return value


def parse_bytes(text: str) -> int:
    return int(parse("size", text, BYTES, "25MB"))


def parse_seconds(text: str) -> float:
    return parse("time", text, SECONDS, "30s")


def check_seconds(name: str, value: object) -> float:
    """Return seconds, or raise a ValueError unless they are from 0 to a day."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MOST_SECONDS:
        raise ValueError(f"{name} must be from 0 to {MOST_SECONDS:.0f} seconds, not {value!r}")
    return float(value)


def whole_number(text: str) -> int | None:
    """

    >>> whole_number("64"), whole_number("6.4"), whole_number("\N{ARABIC-INDIC DIGIT SIX}")
    (64, None, None)
    """
    return int(text) if re.fullmatch("[0-9]{1,1000}", text) else None  # Python's limit: about 4000


def above_zero(what: str, text: str) -> int:
    found = whole_number(text)
    if not found:
        raise ValueError(f"{what} must be a whole number above zero, not {text!r}")
    return found


def named_values(what: str, texts: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Separate texts like ``name=value``.

    >>> named_values("wire", ["4", "error=no"])
    (['4'], {'error': 'no'})
    """
    plain, named = list[str](), dict[str, str]()
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            plain.append(text)
        elif name in named:
            raise ValueError(f"{what} has {name} twice")
        else:
            named[name] = value
    return plain, named


def parse_sizes(text: str) -> list[int]:
    """Parse sizes with commas; a range such as 4B:64MiB grows by powers of 4, 4B:64MiB:x2 by powers of 2.

    As in OSU and nccl-tests, 8:64M is 8B:64MiB.

    >>> parse_sizes("4:1K,3000"), parse_sizes("1K:4K:x2")
    ([4, 16, 64, 256, 1024, 3000], [1024, 2048, 4096])
    """
    return [size for part in text.split(",") for size in sizes_of(part)]


def sizes_of(part: str) -> list[int]:
    ends = part.split(":")
    factor = whole_number(ends.pop().strip()[1:]) if len(ends) == 3 and ends[2].strip()[:1] == "x" else 4
    if len(ends) > 2 or not all(ends) or factor is None or factor < 2:
        raise ValueError(f"sizes {part!r} must be a size, or a range of two, as in 4B:64MiB or 4B:64MiB:x2")
    low, high = (int(parse("size", end, BYTES | SHORT_BYTES, "25MB")) for end in (ends * 2)[:2])
    if not 0 < low <= high:
        raise ValueError(f"sizes {part!r} must go up from at least 1 B, as in 4B:64MiB")
    found = list(takewhile(lambda size: size < high, accumulate(repeat(factor), mul, initial=low)))
    return [*found, high]


def format_bytes(nbytes: int) -> str:
    """
    >>> format_bytes(262144), format_bytes(1000)
    ('256 KiB', '1000 B')
    """
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} B"


SEGMENT = f"{format_bytes(default_segment([0]))} on one host, {format_bytes(default_segment([0, 1]))} between hosts"


def format_numbers(numbers: Iterable[int]) -> str:
    """
    >>> format_numbers([5, 0, 1, 2])
    '0-2, 5'
    """
    runs = [list(run) for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0][1]}-{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def format_hosts(ranks: Sequence[int]) -> str:
    """
    >>> format_hosts([3]), format_hosts([2, 2]), format_hosts([2, 1])
    ('3 ranks on 1 host', '4 ranks on 2 hosts (2 on each)', '3 ranks on 2 hosts (2, 1)')
    """
    alike = f"{ranks[0]} on each" if len(set(ranks)) == 1 else ", ".join(map(str, ranks))
    where = f"{plural(sum(ranks), 'rank')} on {plural(len(ranks), 'host')}"
    return where if len(ranks) == 1 else f"{where} ({alike})"


def parse_link(text: str, what: str = "the") -> Link:
    """Parse a bandwidth per direction and a latency (default 0); ``what`` begins errors.

    >>> str(parse_link("10gbit,50us")), str(parse_link("400Gbps")), str(parse_link("25GB/s"))
    ('10 Gbit/s, 50 us', '400 Gbit/s, 0 us', '200 Gbit/s, 0 us')
    """
    from dear_mpi.collectives.transports.emulated import Link  # few jobs emulate

    bandwidth, _, latency = text.partition(",")
    bits = 1
    if match := PER_SECOND.fullmatch(bandwidth):
        number, prefix, unit = filter(None, match.groups())
        bandwidth, bits = f"{number}{prefix}bit", 8 if unit == "B" else 1
    bytes_per_s = bits / 8 * parse("bandwidth", bandwidth, BANDWIDTH, "10gbit,50us, 400Gbps or 25GB/s", zero=False)
    if bytes_per_s < LEAST_BANDWIDTH:
        raise ValueError(f"{what} bandwidth must be at least 0.008kbit, a byte in a second")
    latency_s = parse("latency", latency, SECONDS, "10gbit,50us") if latency else 0.0
    return Link(bytes_per_s, check_seconds(f"{what} latency", latency_s))


def parse_rates(text: str) -> tuple[float, float]:
    """Parse bandwidths, in bytes/s, inside a host and between hosts.

    >>> parse_rates("100gbit/10gbit")
    (12500000000.0, 1250000000.0)
    """
    inside, *between = BETWEEN_LINKS.split(text, 1)
    if not between or "," in text:
        raise ValueError(f"rates {text!r} must be two bandwidths, INSIDE/BETWEEN, as 100gbit/10gbit")
    return parse_link(inside).bandwidth, parse_link(between[0]).bandwidth


def parse_share(name: str, text: str, most: float) -> float:
    """Parse a number, or a percentage, from 0 to ``most``."""
    number = decimal(text.removesuffix("%"))
    if number is None:
        raise ValueError(f"{name} {text!r} cannot be read: write it like 5%")
    found = number / (100 if text.endswith("%") else 1)
    if not 0 <= found <= most:
        raise ValueError(f"{name} must be from 0% to {most:.0%}, not {text}")
    return found


def parse_percentage(name: str, text: str, most: float) -> float:
    """Parse a share below 1, or with %: 1 might mean 1 %."""
    number = decimal(text)
    if number is not None and number >= 1:
        raise ValueError(f"{name} {text!r} has no unit: write it like 5%, or as a part below 1, like 0.05")
    return parse_share(name, text, most)


def decimal(text: str) -> float | None:
    try:
        return float(text) if text.isascii() else None
    except ValueError:
        return None


def parse_straggler(text: str | None, ranks: int) -> list[float]:
    """Parse ``RANK:FACTOR`` to each rank's slow-down.

    >>> parse_straggler(None, 2), parse_straggler("1:1.5", 2)
    ([1.0, 1.0], [1.0, 1.5])
    """
    found = [1.0] * ranks
    if text is None:
        return found
    rank, _, number = text.partition(":")
    slow, factor = whole_number(rank), decimal(number)
    if slow is None or factor is None:
        raise ValueError(f"straggler {text!r} cannot be read: write it like 3:1.5, a rank and a factor")
    if slow >= ranks:
        raise ValueError(f"straggler must be a rank of 0..{ranks - 1}, not {slow}")
    if not 0 < factor <= MOST_SLOWER:
        raise ValueError(f"the factor of the straggler must be above zero, and at most {MOST_SLOWER}, not {number}")
    found[slow] = factor
    return found


def check_distinct(what: str, given: Sequence[object], meaning: Callable[[str], Hashable] = str) -> None:
    """Raise a ValueError if two values have one meaning."""
    texts = list(map(str, given))
    if len(set(map(meaning, texts))) < len(texts):
        raise ValueError(f"{what} must be different ones, not {', '.join(texts)}")


BLOCKS = ("hosts", "per_host")
Levels = list[tuple["Link", dict[str, str]]]  # with named values, such as ``o=1us``


def parse_links(text: str) -> Link:
    """Parse ``--link``; an extra reads a rate for each pair from its file.

    >>> str(parse_links("10gbit,2us/1gbit,50us,hosts=2"))
    '10 Gbit/s, 2 us inside hosts and 1 Gbit/s, 50 us between them (hosts=2)'
    """
    if text.endswith(".json"):
        read: Callable[[str], Link] = lookup("link file", "json", WithExtras({}, "links"))
        return read(text)
    (inside, *others), blocks = parse_levels("link", text)
    return replace(inside[0], between=others[0][0], blocks=blocks) if others else inside[0]


def parse_levels(what: str, text: str, names: Sequence[str] = ()) -> tuple[Levels, Blocks | None]:
    """Parse one link, or links inside and between hosts, each with values of these ``names``.

    Raises a ValueError, which begins with ``what``.
    """
    found, hosts, given = Levels(), dict[str, str](), f"{what} {text!r}"
    for part in BETWEEN_LINKS.split(text):
        of_hosts = [f"{name}={value}" for name, value in hosts.items()]
        plain, named = named_values(given, [*of_hosts, *part.split(",")])
        link = parse_link(",".join(plain), f"{given}: the")
        hosts = {name: named.pop(name) for name in BLOCKS if name in named}
        if unknown := named.keys() - {*names}:
            allowed = ", ".join(f"{name}=" for name in (*names, *BLOCKS))
            raise ValueError(f"{given}: {', '.join(sorted(unknown))} is unknown. Allowed: {allowed}")
        found.append((link, named))
    if (len(found), len(hosts)) not in ((1, 0), (2, 1)):
        raise ValueError(f"{given} must be one link, or INSIDE/BETWEEN,hosts=N, or INSIDE/BETWEEN,per_host=N")
    if not hosts:
        return found, None
    name, number = hosts.popitem()
    return found, Blocks(name, above_zero(f"{given}: {name}", number))


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group by key, in the order of first occurrence.

    >>> grouped(["ring", "native", "ruler"], lambda name: name[0])
    {'r': ['ring', 'ruler'], 'n': ['native']}
    """
    found: dict[K, list[T]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found
