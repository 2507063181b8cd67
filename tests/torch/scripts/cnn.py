"""Classify small images: AdamW, cosine schedule, clipping, bf16 autocast, validation, checkpoints."""

import sys

import torch
from torch import nn

rank, size = 0, 1
torch.manual_seed(0)
images, targets = torch.randn(240, 3, 8, 8), torch.arange(240) % 4
images += targets[:, None, None, None] * 0.5

model = nn.Sequential(
    *(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
losses = []
for _ in range(3):
    model.train()
    for begin in range(0, 180, 60):
        rows = slice(begin + rank, begin + 60, size)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        losses.append(float(nn.functional.cross_entropy(model(images[180:]), targets[180:])))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
    if rank == 0:
        torch.save(state, sys.argv[1])
