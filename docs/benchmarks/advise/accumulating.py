"""Trains dense layers under DistributedDataParallel, each batch in three parts. It knows nothing of dear-mpi.

torchrun --nproc-per-node 2 docs/benchmarks/advise/accumulating.py [--steps 40] [--bucket-mb 4]
"""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, DEPTH, PARTS = 1024, 6, 3


def train(model, steps, batch=32):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.MSELoss()
    for _ in range(steps):
        for part in range(PARTS):
            x = torch.randn(batch, WIDTH)
            with nullcontext() if part == PARTS - 1 else model.no_sync():
                (criterion(model(x), x) / PARTS).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("done")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--bucket-mb", type=int, default=4)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    train(DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=options.bucket_mb), options.steps)
    dist.destroy_process_group()
