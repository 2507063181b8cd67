"""Measure the algorithms of an MPI library, and write the best one of each size in a file that the library reads.

    dear-mpi bench --format ompi-rules --tune FILE     OMPI_MCA_coll_tuned_use_dynamic_rules=1
                                                       OMPI_MCA_coll_tuned_dynamic_rules_filename=FILE
    dear-mpi bench --format mpich-json --tune FILE     MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE=FILE

The candidates ``ompi:NAME`` and ``mpich:NAME`` force an algorithm by its control variable (MPI_T). Open MPI's ``tuned``
reads it when a communicator is made, so each candidate has one. MPICH reads it in each call: it is set and reset around
the call, also for ``mpich:default``. All take turns in one job.

A rule differs from the default only if the default takes clearly longer: the lower end of the ratio's 95 % interval,
widened for the number of algorithms (Bonferroni), is above 1.05, and neither row is marked as noisy. Rules are for this
number of ranks, on one host. Between two sizes they change at the geometric mean; a factor of 2 beyond the measured
sizes, the default remains. Calls are out of place, unless ``--placement`` differs. Algorithms of MPICH with further
parameters are left out.

Sources: coll_tuned_dynamic_file.c of Open MPI 5; csel.c and csel_container.c of MPICH 5.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from dear_mpi.bench.backends import Candidate
from dear_mpi.bench.case import CannotRun, Prepared, Setup, job_us
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.native import FORMS, native
from dear_mpi.bench.output import Format, table_lines
from dear_mpi.bench.run import Report
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.transports.transport import Wrapper
from dear_mpi.contrib.libraries.variables import Variable, called, library
from dear_mpi.reporting.stats import in_batches
from dear_mpi.reporting.units import format_bytes, grouped, parse_bytes

DEFAULT, OTHER = "default", "is an algorithm of another collective"
LEAST = 1.05  # times faster: the library's own choice also takes time, and launches differ by some percent
FANOUT = 4  # of Open MPI's forced chains
FILE_PAGE = 4096  # MPICH maps the file as a text, which needs a zero after it
NAMES = {
    "all_reduce": "allreduce",
    "reduce_scatter": "reduce_scatter_block",
    "all_gather": "allgather",
    "broadcast": "bcast",
}
OMPI_IDS = {"all_gather": 0, "all_reduce": 2, "broadcast": 7, "reduce_scatter": 13}  # COLLTYPE
OMPI = {  # with the size of a segment, if any; without sparbit, which is wrong in place (5.0.11, 2 ranks)
    "all_reduce": "basic_linear nonoverlapping recursive_doubling ring segmented_ring,64KiB rabenseifner "
    "allgather_reduce",
    "reduce_scatter": "basic_linear recursive_doubling recursive_halving butterfly",
    "all_gather": "linear bruck bruck-k-fanout recursive_doubling ring neighbor two_proc direct-messaging",
    "broadcast": "basic_linear chain,64KiB pipeline,64KiB split_binary_tree,64KiB binary_tree,64KiB binomial knomial "
    "scatter_allgather scatter_allgather_ring",
}
MPICH = {
    "all_reduce": "nb recursive_doubling reduce_scatter_allgather ring",
    "reduce_scatter": "nb recursive_doubling pairwise recursive_halving",
    "all_gather": "nb brucks recursive_doubling ring",
    "broadcast": "nb binomial scatter_recursive_doubling_allgather scatter_ring_allgather",
}


def check_vendor(vendor: str) -> None:
    from mpi4py import MPI

    if (found := MPI.get_vendor()[0]) != vendor:
        raise ValueError(f"these algorithms are {vendor}'s, and this job runs {found}")
    library()


def check_case(setup: Setup, algorithms: Mapping[str, str], text: str) -> None:
    """Raise CannotRun unless the library can be forced to run this algorithm."""
    case, transport = setup.case, setup.transport
    if transport.native is None or len(set(transport.hosts)) > 1 or transport.size == 1 or case.device != "cpu":
        raise CannotRun("needs MPI on one host, with several ranks and host memory")
    if text != DEFAULT and text not in algorithms.get(case.collective, "").split():
        raise CannotRun(OTHER)


def tried(prepared: Prepared) -> Prepared:
    """Call it once, and return it. CannotRun: it does not suit the case."""
    from mpi4py import MPI

    try:
        prepared.run()
    except MPI.Exception as error:
        prepared.free()
        raise CannotRun(f"the library refuses it: {error}") from None
    return prepared


def value_of(variable: Variable, name: str) -> int:
    if name != DEFAULT and name not in variable.values:
        raise CannotRun("this version of the library does not have it")
    return 0 if name == DEFAULT else variable.values[name]


def ompi(setup: Setup, text: str = DEFAULT) -> Prepared:
    """Prepare the call on a communicator that is made while the variables have these values."""
    check_case(setup, OMPI, text)
    name, _, segment = text.partition(",")
    forcing = f"coll_tuned_{NAMES[setup.case.collective]}_algorithm"
    number = value_of(Variable(forcing), name)
    values = {"coll_tuned_use_dynamic_rules": number > 0, forcing: number}
    if segment:
        values[f"{forcing}_segmentsize"] = parse_bytes(segment)
    for each, value in values.items():
        called(Variable(each).setter(value)())
    forced: Any = Wrapper(setup.transport)
    forced.native = comm = forced.below.native.Dup()
    for each in values:
        called(Variable(each).setter(0)())
    prepared = native(replace(setup, transport=forced), FORMS[""])
    return tried(replace(prepared, free=lambda: (prepared.free(), comm.Free())))


def mpich(setup: Setup, text: str = DEFAULT) -> Prepared:
    """Prepare the call, and set and reset the variable around it."""
    check_case(setup, MPICH, text)
    variable = Variable(f"MPIR_CVAR_{NAMES[setup.case.collective].upper()}_INTRA_ALGORITHM")
    fallback = Variable("MPIR_CVAR_COLLECTIVE_FALLBACK")
    called(fallback.setter(fallback.values["error"])())  # none measures another algorithm than it names
    before, after = variable.setter(value_of(variable, text)), variable.setter(0)
    prepared = native(setup, FORMS[""])

    def run() -> None:
        before()
        try:
            prepared.run()
        finally:
            after()

    return tried(replace(prepared, run=run))


class Rule(NamedTuple):
    """Use an algorithm from a size on; ``faster`` than the default, with its interval."""

    begin: int
    name: str = DEFAULT
    faster: tuple[float, float, float] = (1.0, 1.0, 1.0)


def rules_of(report: Report) -> dict[str, list[Rule]]:
    """Return each collective's rules, one per measured size; the default for those more than a factor of 2 away."""
    found = {}
    for collective, rows in grouped(report.rows, lambda row: row.collective).items():
        by_size = sorted(grouped(rows, lambda row: row.bytes).items())
        # In place, Open MPI may look up an all_gather with no bytes: that is the default's.
        begins = [max(by_size[0][0] // 2, 1), *(math.isqrt(one * other) for (one, _), (other, _) in pairwise(by_size))]
        measured = [best(begin, same) for begin, (_, same) in zip(begins, by_size, strict=True)]
        found[collective] = [Rule(0), *measured, Rule(2 * by_size[-1][0] + 1)]
    return found


def best(begin: int, rows: Sequence[Row]) -> Rule:
    named = {row.algorithm.partition(":")[2]: row for row in rows if not (row.wrong or row.median_us.is_noisy)}
    found, cut = Rule(begin), in_batches(list(map(job_us, named.values()))) if DEFAULT in named else None
    if cut is None:
        return found
    batches = dict(zip(named, cut, strict=True))
    default = batches.pop(DEFAULT)
    for name, each in batches.items():
        ratio = default.over(each, len(batches))
        if ratio.low > max(LEAST, found.faster[1]):
            found = Rule(begin, name, (ratio.value, ratio.low, ratio.high))
    return found


def without_repeats(rules: Sequence[Rule]) -> list[Rule]:
    return [next(same) for _, same in groupby(rules, lambda rule: rule.name)]


def lines(report: Report) -> Iterator[Text]:
    yield from table_lines(replace(report, left_out=[each for each in report.left_out if OTHER not in each[0]]))
    for collective, rules in rules_of(report).items():
        for rule in rules:
            if rule.name != DEFAULT:
                value, low, high = rule.faster
                said = f"{rule.name}, {value:.2f}x faster than the default ({low:.2f} to {high:.2f})"
                yield Text(f"# rule: {collective} from {format_bytes(rule.begin)} on: {said}")
        few, sizes = sum(rule.name != DEFAULT for rule in rules), len(rules) - 2
        yield Text(f"# {collective}: {few} of {sizes} sizes have a clearly faster algorithm than the default")


def ompi_number(collective: str, name: str) -> int:
    return value_of(Variable(f"coll_tuned_{NAMES[collective]}_algorithm"), name)


def ompi_text(report: Report, number: Callable[[str, str], int] = ompi_number) -> str:
    """Return the rules in format 2 of coll_tuned: collectives, sizes of communicators, sizes of messages."""
    ranks, found = report.rows[0].ranks, rules_of(report)
    written = ["rule-file-version-2", f"{len(found)} # collectives"]
    for collective in sorted(found, key=lambda each: OMPI_IDS[each]):
        written += [f"{OMPI_IDS[collective]} # {collective}", "3 # sizes of communicators"]
        own = without_repeats(found[collective])
        for size, rules in ((1, [Rule(0)]), (ranks, own), (ranks + 1, [Rule(0)])):
            written += [f"{size} # ranks or more", f"{len(rules)} # sizes of messages"]
            for rule in rules:
                name, _, segment = rule.name.partition(",")
                numbers = rule.begin, number(collective, name), FANOUT, parse_bytes(segment) if segment else 0
                written.append(f"{' '.join(map(str, numbers))} # bytes or more: {rule.name}")
    return "\n".join(written) + "\n"


def mpich_text(report: Report, default: Callable[[], dict[str, Any]] | None = None) -> str:
    """Return the library's tree of choices with these rules in it."""
    ranks, tree = report.rows[0].ranks, (default or mpich_tree)()
    for collective, rules in rules_of(report).items():
        choices = tree[f"collective={NAMES[collective]}"]
        before, size = choices["comm_type=intra"], "total" if collective in ("all_gather", "reduce_scatter") else "avg"
        found, changes = dict[str, Any](), without_repeats(rules)
        limits = [*(f"<={rule.begin - 1}" for rule in changes[1:]), "=any"]
        for rule, limit in zip(changes, limits, strict=True):
            way = "allcomm" if rule.name == "nb" else "intra"
            algorithm = f"algorithm=MPIR_{NAMES[collective].capitalize()}_{way}_{rule.name}"
            found[f"{size}_msg_size{limit}"] = before if rule.name == DEFAULT else {algorithm: {}}
        if collective == "all_reduce":  # as the library's own tree asks before these algorithms
            found = {"count<pow2": before, "count=any": found}
            found = {"is_op_built_in=yes": found, "is_op_built_in=no": before}
        if collective in ("all_reduce", "reduce_scatter"):
            found = {"is_commutative=yes": found, "is_commutative=no": before}
        sizes = {f"comm_size<={ranks - 1}": before, f"comm_size<={ranks}": found, "comm_size=any": before}
        tree[f"collective={NAMES[collective]}"] = choices | {"comm_type=intra": sizes}
    text = json.dumps(tree, indent=1) + "\n"
    return text + "\n" * (len(text) % FILE_PAGE == 0)


def mpich_tree() -> dict[str, Any]:
    """Return the default choices, a text in the library's file. ValueError: it has none."""
    for text in re.findall(rb'\{"collective=[^\0]*\}', Path(library()._name).read_bytes()):
        if b"algorithm=MPIR_Allreduce_intra_recursive_doubling" in text:
            return dict(json.loads(text))
    raise ValueError("this MPICH has no default choices of collectives in its file")


def suited(library: str, known: Mapping[str, str], suite: Suite, flags: Mapping[str, Any]) -> Suite:
    """Take the library's algorithms. Raises ValueError."""
    collectives = suite.collectives if "collective" in flags else tuple(NAMES)
    if "tune" not in flags or "algorithms" in flags:
        raise ValueError(
            "this --format needs --tune FILE, which the library reads, and no --algorithms: it measures all of them"
        )
    if missing := [each for each in collectives if each not in NAMES]:
        raise ValueError(f"this --format has rules for {', '.join(NAMES)}, not for {', '.join(missing)}")
    names = dict.fromkeys(each for collective in collectives for each in (DEFAULT, *known[collective].split()))
    placements = suite.placements if "placement" in flags else ("out",)
    algorithms = tuple(f"{library}:{each}" for each in names)
    return replace(suite, collectives=collectives, algorithms=algorithms, placements=placements)


OMPI_CANDIDATE = Candidate(ompi, "others", segments=False, check=partial(check_vendor, "Open MPI"))
MPICH_CANDIDATE = Candidate(mpich, "others", segments=False, check=partial(check_vendor, "MPICH"))
OMPI_RULES = Format(lines, names_missing=True, suited=partial(suited, "ompi", OMPI), tuned=ompi_text)
MPICH_JSON = Format(lines, names_missing=True, suited=partial(suited, "mpich", MPICH), tuned=mpich_text)
