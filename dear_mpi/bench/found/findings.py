"""What stands out in a run of the benchmark, and is said without being asked for: where wrong results come from, and
which rank is late now and then."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np

from dear_mpi.bench.case import SPIKE, Case, Prepared, Samples
from dear_mpi.bench.data import Data
from dear_mpi.bench.found.about import about, place_of, varied_in
from dear_mpi.bench.found.fault import Fault
from dear_mpi.bench.found.late import FEWEST, OFTEN, Late, blamed_rank, by_times
from dear_mpi.bench.found.located import fault_of, located
from dear_mpi.bench.found.recorded_calls import recorded_calls
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.stand import Stand
from dear_mpi.bench.timing.interleaved import Interleaved, Key
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.ranks.world import World


@dataclass
class Findings:
    """What was found so far, in the order of rows."""

    faults: list[Fault] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)

    def __add__(self, more: "Findings") -> "Findings":
        return Findings(self.faults + more.faults, self.late + more.late)

    def look(
        self, case: Case, samples: Mapping[Key, Samples], interleaved: Interleaved, stand: Stand, seconds: float
    ) -> None:
        """Collective: look at the samples of a case; where some are wrong, or slow, make more calls, for so many
        seconds in all for each of the two."""
        world = stand.world
        wrong = {key: fault_of(case, key, each, world.size) for key, each in samples.items() if each.wrong}
        for key, fault in wrong.items():
            ready, part_s = interleaved.ready.get(key), seconds / len(wrong)
            self.faults.append(located(fault, *ready, world.transport, part_s) if ready else fault)
        late = {
            key: found for key, each in samples.items() if (found := late_of(case, key, each, world.size)) is not None
        }
        for key, found in late.items():
            ready, part_s = interleaved.ready.get(key), seconds / len(late)
            found = replace(found, crowded=stand.crowded)
            self.late.append(after_more(found, *ready, world, part_s) if ready else found)

    def texts(self, rows: Sequence[Row], size: Callable[[Row], int] = attrgetter("bytes")) -> Iterator[str]:
        """Sentences about these rows, in which a buffer has the ``size`` that the layout prints."""
        sizes, varied = {place_of(row): size(row) for row in rows if row.is_balanced}, varied_in(rows)
        faults = [replace(each, bytes=sizes[place_of(each)]) for each in self.faults if place_of(each) in sizes]
        yield from (fault.text(varied) for fault in faults)
        late = [replace(each, bytes=sizes[place_of(each)]) for each in self.late if place_of(each) in sizes]
        yield from (each.text(varied) for each in late if each.rank is not None)
        if unnamed := [f"{each.name(varied)} ({each.spikes:.0%})" for each in late if each.rank is None]:
            what = f"samples over {SPIKE:g} medians, and it cannot be told which rank was late"
            yield f"{what}: {'; '.join(unnamed)}"

    def as_report(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "faults": [asdict(fault) for fault in self.faults],
            "late_ranks": [asdict(each) for each in self.late],
        }


def late_of(case: Case, key: Key, samples: Samples, ranks: int) -> Late | None:
    """What the samples say of late ranks; None if few of them are slow."""
    by_rank_s, job_s = np.array(samples.times_s), np.array(samples.job_s(case.cadence))
    slow = int((job_s > SPIKE * np.median(job_s)).sum())
    if slow < max(FEWEST, OFTEN * len(job_s)) or len(by_rank_s) == 1:
        return None
    late = Late(**about(case, key, samples, ranks), spikes=slow / len(job_s))
    contract = COLLECTIVES.get(case.collective)
    if contract is None or contract.rooted or case.cadence != "isolated":
        return late
    return replace(late, **blamed_rank(by_times(by_rank_s), ranks, len(job_s), "times"))


def after_more(late: Late, prepared: Prepared, data: Data, world: World, seconds: float) -> Late:
    """Collective: the same, as recorded calls say it; as it is if these name no rank, or there are no messages."""
    plan = prepared.run
    if not (isinstance(plan, Plan) and isinstance(plan.run, MessagesRun)) or data.case.device != "cpu":
        return late  # on a GPU a call only launches what combines and copies
    data.clear()
    found, calls = recorded_calls(plan, world, seconds)
    return replace(late, **blamed_rank(found, world.size, calls, "recorded"))
