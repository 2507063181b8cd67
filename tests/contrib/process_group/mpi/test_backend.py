"""torch.distributed over our collectives: DDP and FSDP as they are."""

from contextlib import contextmanager

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.distributed needs torch (our extra 'torch')")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms import ddp_comm_hooks as hooks  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (  # noqa: E402
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

from dear_mpi.collectives import all_reduce  # noqa: E402
from dear_mpi.collectives.program.errors import (  # noqa: E402
    ArgumentError,
    CollectiveError,
    MismatchError,
    TransportError,
)
from dear_mpi.torch import init_process_group  # noqa: E402
from tests.torch.digits import ddp, learned, new, parts  # noqa: E402
from tests.torch.gloo import over_gloo  # noqa: E402

pytestmark = pytest.mark.mpi


@contextmanager
def ours(comm, **options):
    """The default group, of our backend."""
    init_process_group(comm, **options)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture(params=["ring", "ordered"])
def group(comm, request):
    """Over an algorithm."""
    with ours(comm, algorithm=request.param):
        yield request.param


def check_it_goes_on(comm, agree):
    """Whatever was refused, the group works."""
    ones = torch.ones(3)
    dist.all_reduce(ones)
    agree(ones.tolist() == [comm.size] * 3)


def mine(comm, dtype=torch.float32, count=1003):
    generator = torch.Generator().manual_seed(comm.rank)
    return torch.randn(count, generator=generator, dtype=torch.float32).to(dtype)


OPS = [("sum", dist.ReduceOp.SUM), ("average", dist.ReduceOp.AVG), ("max", dist.ReduceOp.MAX)]


@pytest.mark.parametrize(("op", "theirs"), OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_all_reduce_has_the_bits_of_our_algorithm(comm, agree, group, op, theirs, dtype):
    tensor = mine(comm, dtype)
    array = tensor.view(torch.int16).numpy().copy().view("bfloat16") if dtype == torch.bfloat16 else None
    array = tensor.numpy().copy() if array is None else array
    dist.all_reduce(tensor, theirs)
    all_reduce(array, comm, algorithm=group, op=op)
    found = tensor.view(torch.int16) if dtype == torch.bfloat16 else tensor
    agree(found.numpy().tobytes() == array.tobytes())


def test_bool_and_bitwise_reductions_are_those_of_gloo(comm, agree):
    """PyTorch's optimizers reduce ``found_inf`` by MAX; gloo adds bool as it adds bytes, where we have "or"."""
    cases = [(dtype, name) for name in ("BAND", "BOR", "BXOR") for dtype in (torch.bool, torch.uint8, torch.int64)]
    cases += [(torch.bool, name) for name in ("SUM", "PRODUCT", "MIN", "MAX")]

    def results():
        for dtype, name in cases:
            tensor = ((torch.arange(64) >> comm.rank) % 5).to(dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
            yield tensor.tolist()

    with ours(comm):
        found = list(results())
    with over_gloo(comm):
        expected = list(results())
    for case, mine, theirs in zip(cases, found, expected, strict=True):
        agree(mine == theirs, f"{case}: {mine} beside {theirs}")


def test_the_collectives_do_what_they_say(comm, agree, group):
    size, rank = comm.size, comm.rank
    columns = torch.arange(12.0).reshape(4, 3).T + rank  # which are not contiguous
    dist.all_reduce(columns)
    agree(torch.equal(columns, size * torch.arange(12.0).reshape(4, 3).T + sum(range(size))))
    flags = torch.tensor([rank == size - 1, True])
    dist.broadcast(flags, size - 1)
    agree(flags.tolist() == [True, True])
    gathered = [torch.zeros(2, dtype=torch.complex64) for _ in range(size)]
    dist.all_gather(gathered, torch.full((2,), rank + 1j))
    agree([each[0].item() for each in gathered] == [other + 1j for other in range(size)])
    whole = torch.zeros(size, 2, dtype=torch.int64)
    dist.all_gather_single(whole, torch.tensor([rank, -rank]))
    agree(whole.tolist() == [[other, -other] for other in range(size)])
    part = torch.zeros(3)
    dist.reduce_scatter_single(part, torch.arange(3.0 * size) * (rank + 1))
    agree(torch.equal(part, torch.arange(3.0 * size)[3 * rank : 3 * rank + 3] * (size * (size + 1) // 2)))
    dist.reduce_scatter(part, [torch.full((3,), float(other)) for other in range(size)])
    agree(part.tolist() == [rank * size] * 3)
    words = [None] * size
    dist.all_gather_object(words, f"rank {rank}")
    agree(words == [f"rank {other}" for other in range(size)])
    dist.barrier()


def test_a_call_under_way_is_over_when_its_work_is(comm, agree, group):
    tensors = [torch.full((1000,), float(number)) for number in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for number, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
        work.wait()
        agree(work.is_completed() and bool((tensor == number * comm.size).all()))


def test_groups_of_some_ranks_communicate_by_themselves(comm, agree, group):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    first = list(range((comm.size + 1) // 2))
    groups = [dist.new_group(ranks) for ranks in (first, list(range(len(first), comm.size)))]
    tensor = torch.ones(10)
    number = comm.rank not in first
    dist.all_reduce(tensor, group=groups[number])
    agree(tensor[0].item() == (comm.size - len(first) if number else len(first)))


def test_groups_of_all_ranks_do_not_meet(comm, agree, group):
    """Both had one communicator: their calls met, where two threads of a rank were under way at once."""
    other = dist.new_group()
    here, there = (torch.full((1000,), float(number)) for number in (1, 2))
    works = [
        dist.all_reduce(tensor, group=each, async_op=True)
        for each, tensor in ((None, here), (other, there))[:: 1 if comm.rank % 2 else -1]
    ]
    for work in works:
        work.wait()
    agree(bool((here == comm.size).all()) and bool((there == 2 * comm.size).all()))


@pytest.mark.filterwarnings("ignore")
def test_ddp_has_the_bits_of_our_algorithm(comm, agree, group):
    """A gradient of DDP is the all-reduce of the ranks' own ones, each over the number of ranks."""
    torch.manual_seed(0)
    module, alone = (nn.Linear(64, 10, bias=False) for _ in range(2))
    alone.load_state_dict(module.state_dict())
    model = nn.parallel.DistributedDataParallel(module)
    for x, y in parts(comm)[:3]:
        for each in (model, alone):
            each.zero_grad()
            functional.cross_entropy(each(torch.from_numpy(x).flatten(1)), torch.from_numpy(y)).backward()
        expected = (alone.weight.grad * (1 / comm.size)).numpy().reshape(-1)
        all_reduce(expected, comm, algorithm=group)
        agree(module.weight.grad.numpy().tobytes() == expected.tobytes())


def test_ddp_and_fsdp_learn_as_over_gloo(comm, agree):
    expected, _ = ddp(comm, "block")
    for wrap in (nn.parallel.DistributedDataParallel, sharded):
        with ours(comm):
            losses = learned(comm, wrap(new("block")))
        agree(np.allclose(losses, expected, rtol=1e-4), f"{wrap.__name__}: {losses[-1]} beside {expected[-1]}")


def sharded(module):
    """FSDP2: the block and the rest are gathered and scattered by themselves."""
    for each in (module.block, module):
        fully_shard(each)
    return module


HOOKS = {  # of DDP, with the state that each is given
    "all-reduce": lambda: (None, hooks.default.allreduce_hook),
    "fp16": lambda: (None, hooks.default.fp16_compress_hook),
    "quantized": lambda: (dist.group.WORLD, hooks.quantization.quantization_pertensor_hook),  # gloo has no such type
    "PowerSGD": lambda: (PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5), powerSGD_hook),
    "post-local SGD": lambda: (PostLocalSGDState(None, dist.new_group(), 2), post_localSGD_hook),
}


# Groups of gloo, which aborts the process if a callback in a group's own thread drops the last reference to it.
KEPT = []


def hooked(comm, hook, bucket_mb):
    """The parameters after some steps of DDP with a communication hook."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    model = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=bucket_mb)
    state, function = HOOKS[hook]()
    KEPT.extend((state, dist.group.WORLD))
    model.register_comm_hook(state, function)
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    torch.manual_seed(comm.rank)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_ddp_train(comm, agree, hook):
    """A callback of PowerSGD starts a collective and waits for it, which never returned; with one bucket and many."""
    found = []
    for bucket_mb in (25, 0.001):
        with ours(comm):
            found.append(hooked(comm, hook, bucket_mb))
        agree(len(set(comm.allgather(found[-1].tobytes()))) == 1, f"buckets of {bucket_mb} MB")
    if hook != "quantized":
        atol = 2e-3 if hook == "fp16" else 1e-6  # gloo adds in another order
        with over_gloo(comm):
            agree(np.allclose(found[0], hooked(comm, hook, 25), atol=atol))


def test_what_is_not_offered_says_so(comm, group):
    with pytest.raises(ArgumentError, match=r"reduction PREMUL_SUM is not offered by backend 'dear'\. Allowed: SUM"):
        dist.all_reduce(torch.ones(3), dist._make_nccl_premul_sum(2.0))
    with pytest.raises(NotImplementedError, match="backend 'dear' does not offer send and receive"):
        dist.isend(torch.ones(3), (comm.rank + 1) % comm.size)


SPARSE = torch.ones(3).to_sparse()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda size, bad: dist.all_reduce(SPARSE.clone() if bad else torch.ones(3)), "must be dense"),
        (lambda size, bad: dist.broadcast(SPARSE.clone() if bad else torch.ones(3), 0), "must be dense"),
        (
            lambda size, bad: dist.all_reduce(torch.ones(3), dist.ReduceOp.BXOR if bad else dist.ReduceOp.SUM),
            "'bxor' needs",
        ),
        (lambda size, bad: dist.all_reduce(torch.ones(1).expand(3) if bad else torch.ones(3)), "memory for each"),
        (lambda size, bad: dist.all_gather([torch.ones(2)] * size, torch.ones(2 + bad)), "must have 2 elements"),
        (
            lambda size, bad: dist.all_gather_single(torch.ones(2 * size + bad), torch.ones(2)),
            "output_tensor must have",
        ),
        (lambda size, bad: dist.reduce_scatter_single(torch.ones(2), torch.ones(2 * size + bad)), "input must have"),
        (
            lambda size, bad: dist.all_to_all([torch.ones(2)] * size, [torch.ones(2)] * (size + bad)),
            "a tensor for each",
        ),
        (
            lambda size, bad: dist.all_to_all_single(
                torch.ones(size), torch.ones(size), None, [bad + 1] + [1] * (size - 1)
            ),
            "split sizes must add up to",
        ),
    ],
)
def test_what_one_rank_cannot_do_all_refuse_and_go_on(comm, agree, group, call, message):
    """Twice: at first there are no plans, then kept ones."""
    for bad in (comm.rank == comm.size - 1, True, comm.rank == 0):
        with pytest.raises(ArgumentError, match=message):
            call(comm.size, int(bad))
        check_it_goes_on(comm, agree)
        call(comm.size, 0)


def test_what_ranks_give_may_be_of_different_sizes(comm, agree, group):
    size, rank = comm.size, comm.rank
    gathered = [torch.zeros(other, 2) for other in range(size)]
    dist.all_gather(gathered, torch.full((rank, 2), float(rank)))
    agree(all(bool((each == other).all()) for other, each in enumerate(gathered)))
    part = torch.zeros(rank + 1)
    dist.reduce_scatter(part, [torch.full((other + 1,), float(other)) for other in range(size)])
    agree(part.tolist() == [rank * size] * (rank + 1))
    received = torch.zeros(sum(range(size)) + size * rank, 1, dtype=torch.int16)
    given = torch.full((sum(range(size)) + size * rank, 1), rank, dtype=torch.int16)
    sizes = [rank + other for other in range(size)]
    dist.all_to_all_single(received, given, sizes, sizes)
    agree(received.flatten().tolist() == [other for other in range(size) for _ in range(rank + other)])


def test_a_tensor_of_another_size_on_one_rank_is_refused_by_all(comm, agree, group):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    bad = int(comm.rank == 1)
    with pytest.raises(MismatchError, match=r"gather: rank 1 sends 12 bytes to rank 0, which expects 8"):
        dist.gather(torch.ones(2 + bad), [torch.ones(2) for _ in range(comm.size)] if comm.rank == 0 else None)
    with pytest.raises(MismatchError, match="rank 0 sends 8 bytes to rank 1, which expects 12"):
        dist.all_gather([torch.ones(2 + (bad and each != 1)) for each in range(comm.size)], torch.ones(2))
    check_it_goes_on(comm, agree)


def test_rooted_collectives_and_all_to_alls(comm, agree, group):
    size, rank = comm.size, comm.rank
    root = size - 1
    total = torch.arange(6.0).reshape(3, 2).T + rank  # which is not contiguous
    before = total.clone()
    dist.reduce(total, root)
    expected = size * torch.arange(6.0).reshape(3, 2).T + sum(range(size))
    agree(torch.equal(total, expected if rank == root else before))
    means = torch.full((3,), float(rank))
    dist.reduce(means, 0, dist.ReduceOp.AVG)
    agree(rank > 0 or means.tolist() == [(size - 1) / 2] * 3)
    gathered = [torch.zeros(2, dtype=torch.bool) for _ in range(size)] if rank == root else None
    dist.gather(torch.tensor([rank % 2 == 0, True]), gathered, root)
    agree(gathered is None or [each.tolist() for each in gathered] == [[n % 2 == 0, True] for n in range(size)])
    part = torch.zeros(4)[::2]
    dist.scatter(part, [torch.full((2,), float(other)) for other in range(size)] if rank == root else None, root)
    agree(part.tolist() == [rank, rank])
    received = [torch.zeros(other + rank) for other in range(size)]
    dist.all_to_all(received, [torch.full((rank + other,), rank + 0.5) for other in range(size)])
    agree(all(bool((each == other + 0.5).all()) for other, each in enumerate(received)))
    whole = torch.zeros(size, 2, dtype=torch.complex64)
    dist.all_to_all_single(whole, torch.full((size, 2), rank + 1j, dtype=torch.complex64))
    agree(whole[:, 0].tolist() == [other + 1j for other in range(size)])
    found = [None] * size if rank == 0 else None
    dist.gather_object({"rank": rank}, found)
    agree(rank > 0 or found == [{"rank": other} for other in range(size)])
    taken = [None]
    dist.scatter_object_list(taken, [f"for {other}" for other in range(size)] if rank == 0 else None)
    agree(taken == [f"for {rank}"])


@pytest.mark.filterwarnings("ignore")
def test_a_sharded_module_gives_its_whole_parameters(comm, agree, group):
    """`full_tensor`, `distribute_tensor` and state dictionaries of DTensor call the group from C++."""
    torch.manual_seed(0)
    module = nn.Linear(7, 5)
    expected = {name: each.detach().clone() for name, each in module.named_parameters()}
    fully_shard(module)
    agree(all(torch.equal(each.full_tensor(), expected[name]) for name, each in module.named_parameters()))
    mesh = init_device_mesh("cpu", (comm.size,))
    x = torch.arange(24.0).reshape(6, 4)
    rows = distribute_tensor(x.clone(), mesh, [Shard(0)])
    agree(torch.equal(rows.redistribute(mesh, [Shard(1)]).full_tensor(), x))
    partial = DTensor.from_local(torch.full((6, 4), float(comm.rank)), mesh, [Partial()])
    agree(bool((partial.redistribute(mesh, [Shard(0)]).full_tensor() == sum(range(comm.size))).all()))
    agree(bool((partial.full_tensor() == sum(range(comm.size))).all()))


def test_what_all_refuse_leaves_the_group_as_it_is(comm, agree, group):
    with pytest.raises(ArgumentError, match="op 'average' needs one of"):
        dist.all_reduce(torch.ones(3, dtype=torch.int64), dist.ReduceOp.AVG)
    check_it_goes_on(comm, agree)


def test_an_algorithm_that_does_not_exist_is_refused_by_all(comm):
    with pytest.raises(ArgumentError, match=r"init_process_group: algorithm 'rnig' is unknown: did you mean 'ring'\?"):
        init_process_group(comm, algorithm="rnig")
    assert not dist.is_initialized()


def test_ranks_that_differ_hear_of_it_where_they_wait_and_go_on(comm, agree):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    with ours(comm):
        work = dist.all_reduce(torch.ones(3 + comm.rank), async_op=True)
        with pytest.raises(MismatchError, match="all_reduce: count must be the same on all ranks"):
            work.wait()
        check_it_goes_on(comm, agree)


@pytest.mark.filterwarnings("ignore")
def test_after_a_failure_on_the_wire_nothing_more_is_run(comm, monkeypatch):
    def lost(*arguments, **options):
        raise TransportError("the wire is cut")

    with ours(comm):
        module = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        monkeypatch.setattr("dear_mpi.contrib.process_group.backend.all_reduce", lost)
        with pytest.raises(TransportError, match="the wire is cut"):
            dist.all_reduce(torch.ones(3))
        with pytest.raises(CollectiveError, match="was not run, because one before it failed: the wire is cut"):
            dist.broadcast(torch.ones(3), 0)
        with pytest.raises(RuntimeError):  # said by C++, in words of its own
            module(torch.ones(1, 3)).sum().backward()
