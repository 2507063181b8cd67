"""PyTorch's own process group, beside which ours are held."""

import tempfile
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def over_gloo(comm):
    """Collective: the default group is gloo's; its ranks, which are of one host, meet at a file."""
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(comm.bcast(f"{folder}/store"), comm.size)
        dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
        try:
            yield
        finally:
            dist.destroy_process_group()
            del store
            comm.Barrier()
