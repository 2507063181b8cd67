"""Plans of portions of every chunk, run in any order, have the bits of one plan of the whole."""

import numpy as np
import pytest

from dear_mpi.collectives import ALGORITHMS, make_plan
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import StagedTransport

SEGMENT = 256
CASES = [
    (algorithm, collective)
    for algorithm, functions in ALGORITHMS.items()
    for collective in ("reduce_scatter", "all_gather", "all_reduce", "all_to_all")
    if collective in functions and runner_of(algorithm) == "messages"
]


def carried_out(transport, algorithm, collective, portions, count, *, debug=False):
    """What this rank has afterwards, as bytes: of a reduce_scatter its shard; an all_to_all has equal chunks."""
    count -= count % transport.size if collective == "all_to_all" else 0
    x = np.random.default_rng(transport.rank).standard_normal(count).astype(np.float32)
    how = {"algorithm": algorithm, "segment_bytes": SEGMENT, "debug": debug}
    plans = [make_plan(collective, x, transport, portion=portion, **how) for portion in portions]
    for plan in plans:
        plan()
    shard = plans[0].call.partition(transport.size).shard(transport.rank)
    for plan in plans:
        plan.free()
    return (x[shard] if collective == "reduce_scatter" else x).tobytes()


@pytest.mark.parametrize(("algorithm", "collective"), CASES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_portions_in_any_order_have_the_bits_of_the_whole(algorithm, collective, ranks):
    portions = [Portion(2, 7, 7), Portion(0, 1, 7), Portion(1, 2, 7)]
    for count in (0, ranks + 1, 5003):
        whole, parts = (
            run_loopback(ranks, lambda each, p=p, c=count: carried_out(each, algorithm, collective, p, c))
            for p in ([WHOLE], portions)
        )
        assert whole == parts


def test_portions_of_staged_buffers_in_debug_mode():
    def body(transport):
        staged = StagedTransport(transport)
        return carried_out(staged, "ring", "all_reduce", [Portion(1, 2, 2), Portion(0, 1, 2)], 5000, debug=True)

    assert run_loopback(3, body) == run_loopback(3, lambda each: carried_out(each, "ring", "all_reduce", [WHOLE], 5000))


@pytest.mark.parametrize(("how", "said"), [
    ({"op": "average"}, "portion must be left out if out is given or op is .average."),
    ({"out": np.zeros(8)}, "portion must be left out if out is given or op is .average."),
])  # fmt: skip
def test_what_is_of_the_whole_has_no_portions(how, said):
    def body(transport):
        make_plan("all_reduce", np.ones(8), transport, portion=Portion(0, 1, 2), **how)

    with pytest.raises(AgreedError, match=said):
        run_loopback(2, body)


def test_ranks_compare_portions():
    def body(transport):
        make_plan("all_reduce", np.ones(8), transport, portion=Portion(transport.rank, transport.rank + 1, 2))

    with pytest.raises(AgreedError, match="portion"):
        run_loopback(2, body)
