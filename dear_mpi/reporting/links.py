"""Networks as people write them: one link, 10gbit,50us, or two, inside hosts and between them.

INSIDE/BETWEEN,hosts=N       N hosts of equally many ranks, one after the other
INSIDE/BETWEEN,per_host=N    N ranks on each host but the last
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dear_mpi.collectives.program.hosts import Blocks
from dear_mpi.collectives.transports.emulated import Link
from dear_mpi.reporting.units import BETWEEN_LINKS, above_zero, named_values, parse_link

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
    found, hosts, given = list[Level](), dict[str, str](), f"{what} {text!r}"
    for part in BETWEEN_LINKS.split(text):
        of_hosts = [f"{name}={value}" for name, value in hosts.items()]
        plain, named = named_values(given, [*of_hosts, *part.split(",")])
        link = parse_link(",".join(plain), f"{given}: the")
        hosts = {name: named.pop(name) for name in BLOCKS if name in named}
        if unknown := named.keys() - {*names}:
            allowed = ", ".join(f"{name}=" for name in (*names, *BLOCKS))
            raise ValueError(f"{given}: {', '.join(sorted(unknown))} is unknown. Allowed: {allowed}")
        found.append(Level(link, named))
    if (len(found), len(hosts)) not in ((1, 0), (2, 1)):
        raise ValueError(f"{given} must be one link, or INSIDE/BETWEEN,hosts=N, or INSIDE/BETWEEN,per_host=N")
    if not hosts:
        return found, None
    name, number = hosts.popitem()
    return found, Blocks(name, above_zero(f"{given}: {name}", number))
