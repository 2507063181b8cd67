"""PyTorch on CUDA tensors: ``DistributedOptimizer`` beside the CPU, and DDP and FSDP2 over our backend."""

import pytest

torch = pytest.importorskip("torch", reason="DistributedOptimizer needs torch (our extra 'torch')")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import dear_mpi.torch as dear  # noqa: E402
from tests.rooms import DELETED  # noqa: E402
from tests.torch.looping import MEAN  # noqa: E402
from tests.torch.models import batch, new  # noqa: E402

pytestmark = pytest.mark.mpi
DEVICE = "cuda"
STEPS = 6
OPTIONS = [
    {"schedule": "dear"},
    {"schedule": "dear", "update": "sharded", "clip": 0.5},
    {"schedule": "dear-eager", "fusion": "cut:128B"},
    {"schedule": "wfbp", "fusion": "none", "wire": "bf16"},
    {"schedule": "ddp", "accumulate": 2},
]


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def train(module, optimizer, rank, accumulate=1):
    """Steps with this rank's batches."""
    some = next(module.parameters())
    for iteration in range(STEPS):
        optimizer.zero_grad()
        for part in range(accumulate):
            x, y = (torch.from_numpy(each).to(some.device) for each in batch(iteration * accumulate + part, rank))
            MEAN(module(x.to(some.dtype)).float(), y).backward()
        optimizer.step()


def trained(comm, name, device, dtype=torch.float32, **options):
    """Collective: a module after steps on a device."""
    module = new(name, dtype).to(device)
    with dear.DistributedOptimizer(sgd(module), module, comm=comm, **options) as optimizer:
        train(module, optimizer, comm.rank, options.get("accumulate", 1))
    return module


def flat(module):
    return torch.cat([each.detach().float().flatten().cpu() for each in module.parameters()])


def check(comm, agree, found, wanted, tolerance=1e-4):
    """Equal bits on all ranks, near what is wanted."""
    agree(len({each.numpy().tobytes() for each in comm.allgather(found)}) == 1, "ranks differ")
    error = float((found - wanted).abs().max() / wanted.abs().max())
    agree(error < tolerance, f"relative error {error}")


@pytest.mark.parametrize("name", ["branches", "tied", "attention"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_gpu_ends_near_the_cpu(comm, agree, name, options):
    found, wanted = (flat(trained(comm, name, device, **options)) for device in (DEVICE, "cpu"))
    check(comm, agree, found, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_two_byte_types_end_near_fp32(comm, agree, dtype):
    check(comm, agree, flat(trained(comm, "sequential", DEVICE, dtype)), flat(trained(comm, "sequential", "cpu")), 0.05)


def test_averages_are_handed_to_the_user(comm, agree):
    modules = [new("branches", torch.float32).to(device) for device in (DEVICE, "cpu")]
    for module in modules:
        with dear.DistributedOptimizer(sgd(module), module, comm=comm) as optimizer:
            for iteration in range(STEPS):
                optimizer.zero_grad()
                x, y = (torch.from_numpy(each).to(optimizer.device) for each in batch(iteration, comm.rank))
                MEAN(module(x.float()), y).backward()
                optimizer.synchronize()
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
                optimizer.step()
    check(comm, agree, *map(flat, modules))


@pytest.mark.skipif("process_group" in DELETED, reason="an extra, which was deleted")
@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
def test_torchs_wrappers_run_over_our_backend(comm, agree, wrap):
    wanted = flat(trained(comm, "sequential", "cpu"))
    dear.init_process_group(comm)
    try:
        module = new("sequential", torch.float32).to(DEVICE)
        if wrap == "ddp":
            train(DistributedDataParallel(module), sgd(module), comm.rank)
            found = flat(module)
        else:
            fully_shard(module, mesh=init_device_mesh(DEVICE, (comm.size,)))
            train(module, sgd(module), comm.rank)
            found = torch.cat([each.full_tensor().detach().flatten().cpu() for each in module.parameters()])
    finally:
        dist.destroy_process_group()
    check(comm, agree, found, wanted)


def test_a_graph_is_refused(comm, agree):
    module = new("sequential", torch.float32).to(DEVICE)
    with dear.DistributedOptimizer(sgd(module), module, comm=comm) as optimizer:
        train(module, optimizer, comm.rank)
        said = ""
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                module(torch.ones(4, 6, device=DEVICE))
        except ValueError as error:
            said = str(error)
    agree("a CUDA graph cannot repeat messages" in said, said)
