"""How each row stands to its peer, the fastest call of an MPI library at its size: the ratio, with its interval.

The fastest call may have been lucky, the more so the more calls are about as fast. So all that are not clearly slower
than it are rivals. The upper end is the highest upper end over the rivals. The lower end is the highest lower end, of
intervals widened so that any of them is too high with 2.5 % (Bonferroni). How single intervals come about says
``reporting/stats.py``.
"""

from collections.abc import Sequence
from dataclasses import replace

from dear_mpi.bench.case import job_us
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import contestant
from dear_mpi.reporting.stats import Batches, in_batches
from dear_mpi.reporting.units import grouped


def against_peers(rows: Sequence[Row]) -> list[Row]:
    """The rows, with the fastest call of an MPI library at their size; the first contestant, where there is none."""
    found = dict[int, Row]()
    for places in grouped(range(len(rows)), lambda place: rows[place].case).values():
        found |= zip(places, in_one_case([rows[place] for place in places]), strict=True)
    return [found[place] for place in range(len(rows))]


def in_one_case(rows: Sequence[Row]) -> list[Row]:
    calls = [place for place, row in enumerate(rows) if contestant(row.algorithm).is_library] or [0]
    calls = [place for place in calls if not rows[place].wrong] or calls  # what is wrong may well be fast
    best = min(calls, key=lambda place: rows[place].p50_us)
    peer, found = rows[best], list[Row]()
    cut = in_batches([job_us(row) for row in rows])
    rivals = [call for call in calls if call == best or (cut and cut[call].over(cut[best]).low <= 1)]
    for place, row in enumerate(rows):
        ends = (
            (1.0, 1.0)
            if place == best
            else cut and over_each(cut[place], [cut[each] for each in rivals if each != place])
        )
        low, high = ends or (None, None)
        over = row.p50_us / peer.p50_us
        found.append(replace(row, peer=peer.algorithm, over_peer=over, over_peer_low=low, over_peer_high=high))
    return found


def over_each(own: Batches, others: Sequence[Batches]) -> tuple[float, float]:
    """The interval of its time over that of the fastest of the others."""
    found = [own.over(each, len(others)) for each in others]
    return max(each.low for each in found), max(each.high for each in found)
