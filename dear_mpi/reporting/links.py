"""Networks as people write them: one link, 10gbit,50us, or two, inside hosts and between them.

INSIDE/BETWEEN,hosts=N       N hosts of equally many ranks, one after the other
INSIDE/BETWEEN,per_host=N    N ranks on each host but the last
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dear_mpi.collectives.program.hosts import Blocks
from dear_mpi.collectives.transports.ports import Link
from dear_mpi.reporting.units import parse_link, whole_number

BLOCKS = ("hosts", "per_host")


@dataclass(frozen=True)
class Level:
    """A link, and what is named after it, such as ``o=1us``."""

    link: Link
    named: dict[str, str]


def parse_links(text: str) -> Link:
    """What ``--link`` says, or a ValueError.

    >>> str(parse_links("10gbit,2us/1gbit,50us,hosts=2"))
    '10 Gbit/s, 2 us inside hosts and 1 Gbit/s, 50 us between them (hosts=2)'
    """
    (inside, *others), blocks = parse_levels("link", text)
    return replace(inside.link, between=others[0].link, blocks=blocks) if others else inside.link


def parse_levels(what: str, text: str, names: Sequence[str] = ()) -> tuple[list[Level], Blocks | None]:
    """One link, or the links inside and between hosts, and the hosts; a ValueError, which begins with ``what``, if it
    is anything else. ``names`` may be named after a link, beside hosts."""
    found, hosts = list[Level](), dict[str, str]()
    for part in text.split("/"):
        fields = part.split(",")
        pairs = [field.split("=", 1) for field in fields if "=" in field]
        link = parse_link(",".join(field for field in fields if "=" not in field), f"{what} {text!r}: the")
        given = [*hosts, *(name for name, _ in pairs)]
        for name in given:
            if given.count(name) > 1:
                raise ValueError(f"{what} {text!r} has {name}= twice")
        named = {name: value for name, value in pairs if name not in BLOCKS}
        if unknown := named.keys() - {*names}:
            allowed = ", ".join(f"{name}=" for name in (*names, *BLOCKS))
            raise ValueError(f"{what} {text!r}: {', '.join(sorted(unknown))} is unknown. Allowed: {allowed}")
        hosts |= {name: value for name, value in pairs if name in BLOCKS}
        found.append(Level(link, named))
    if (len(found), len(hosts)) not in ((1, 0), (2, 1)):
        raise ValueError(f"{what} {text!r} must be one link, or INSIDE/BETWEEN,hosts=N, or INSIDE/BETWEEN,per_host=N")
    if not hosts:
        return found, None
    kind, number = hosts.popitem()
    count = whole_number(number)
    if not count:
        raise ValueError(f"{what} {text!r}: {kind} must be a whole number above zero, not {number!r}")
    return found, Blocks(kind, count)
