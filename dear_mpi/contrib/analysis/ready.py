"""Prepare a case's candidates on buffers of zeros."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dear_mpi.bench.backends import candidate, label
from dear_mpi.bench.case import Case, Prepared
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.suite import Key
from dear_mpi.bench.timing import Context, Interleaved


def ours(keys: Sequence[Key]) -> list[Key]:
    return [key for key in keys if candidate(key[0]).is_plan]


@contextmanager
def ready(case: Case, keys: Sequence[Key], context: Context) -> Iterator[dict[str, Prepared]]:
    """Prepare candidates on buffers that stay zeros; by label, without those that cannot run."""
    several = len({cut for _, cut in keys}) > 1
    interleaved = Interleaved(case, keys, context)
    found = {}
    for (name, cut), (each, data) in interleaved.ready.items():
        data.clear()
        found[label(name, each.chosen, cut if several else None)] = each
    yield found
    interleaved.free()


def same_case(row: Row, case: Case) -> bool:
    facts = {"collective": case.collective, "bytes": case.nbytes, **case.facts}
    return all(getattr(row, name) == value for name, value in facts.items())
