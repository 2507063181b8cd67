"""What stands out in a run of the benchmark, and is said without being asked for: where wrong results come from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dear_mpi.bench.case import Case, Samples
from dear_mpi.bench.fault import Fault
from dear_mpi.bench.interleaved import Interleaved, Key
from dear_mpi.bench.located import fault_of, located
from dear_mpi.bench.machine_file import Row


@dataclass
class Findings:
    """What was found so far, in the order of rows."""

    faults: list[Fault] = field(default_factory=list)

    def look(self, case: Case, samples: Mapping[Key, Samples], interleaved: Interleaved, seconds: float) -> None:
        """Collective: look at the samples of a case, and where they are wrong, for some seconds, at its contestants."""
        for key, each in samples.items():
            if each.wrong:
                fault, ready = fault_of(case, key, each), interleaved.ready.get(key)
                self.faults.append(located(fault, *ready, interleaved.transport, seconds) if ready else fault)

    def texts(self, rows: Sequence[Row]) -> Iterator[str]:
        """What is said beside these rows."""
        shown = {(row.collective, row.bytes, row.algorithm, row.segment_bytes) for row in rows}
        yield from (fault.text for fault in self.faults if fault.row in shown)

    def as_report(self) -> dict[str, list[dict[str, Any]]]:
        return {"faults": [fault.as_row() for fault in self.faults]}
