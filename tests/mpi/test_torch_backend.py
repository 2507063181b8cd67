"""torch.distributed over our collectives: DDP and FSDP as they are."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.distributed needs torch (our extra 'torch')")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn import functional  # noqa: E402

from dear_mpi.collectives import all_reduce  # noqa: E402
from dear_mpi.collectives.program.errors import ArgumentError, CollectiveError, MismatchError  # noqa: E402
from dear_mpi.torch_backend import init_process_group  # noqa: E402
from tests.adapters.torch_digits import ddp, learned, new, parts  # noqa: E402

pytestmark = pytest.mark.mpi


@pytest.fixture(params=["ring", "ordered"])
def group(comm, request):
    """The default group, over an algorithm."""
    init_process_group(comm, algorithm=request.param)
    yield request.param
    dist.destroy_process_group()


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
        init_process_group(comm)
        try:
            losses = learned(comm, wrap(new("block")))
        finally:
            dist.destroy_process_group()
        agree(np.allclose(losses, expected, rtol=1e-4), f"{wrap.__name__}: {losses[-1]} beside {expected[-1]}")


def sharded(module):
    """FSDP2: the block and the rest are gathered and scattered by themselves."""
    for each in (module.block, module):
        fully_shard(each)
    return module


def test_what_is_not_offered_says_so(comm, group):
    with pytest.raises(ValueError, match=r"reduction BXOR is not offered by backend 'dear'\. Allowed: SUM"):
        dist.all_reduce(torch.ones(3, dtype=torch.int64), dist.ReduceOp.BXOR)


def test_what_all_refuse_leaves_the_group_as_it_is(comm, group):
    with pytest.raises(ArgumentError, match="op 'average' needs one of"):
        dist.all_reduce(torch.ones(3, dtype=torch.int64), dist.ReduceOp.AVG)
    ones = torch.ones(3)
    dist.all_reduce(ones)
    assert ones.tolist() == [comm.size] * 3


def test_an_algorithm_that_does_not_exist_is_refused_by_all(comm):
    with pytest.raises(ArgumentError, match=r"init_process_group: algorithm 'rnig' is unknown: did you mean 'ring'\?"):
        init_process_group(comm, algorithm="rnig")
    assert not dist.is_initialized()


def test_ranks_that_differ_hear_of_it_where_they_wait_and_go_no_further(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    init_process_group(comm)
    try:
        module = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        work = dist.all_reduce(torch.ones(3 + comm.rank), async_op=True)
        with pytest.raises(MismatchError, match="all_reduce: count must be the same on all ranks"):
            work.wait()
        with pytest.raises(CollectiveError, match="was not run, because one before it failed: all_reduce: count must"):
            dist.all_reduce(torch.ones(3))
        with pytest.raises(RuntimeError):  # said by C++, in words of its own
            module(torch.ones(1, 3)).sum().backward()
    finally:
        dist.destroy_process_group()
