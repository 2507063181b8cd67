"""Trains a small GPT (Radford et al. 2019) on noise, with tied embeddings. It knows nothing of dear-mpi.

python docs/benchmarks/advise/transformer.py [--steps 40] [--layers 4]
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LENGTH, HEADS = 2000, 384, 64, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        y = self.tokens(x) + self.places
        for block in self.blocks:
            y = block(y, mask)
        return self.head(self.norm(y))


def build(layers=4):
    torch.manual_seed(0)
    return Gpt(layers)


def train(model, steps, batch=2):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        tokens = torch.randint(VOCABULARY, (batch, LENGTH + 1))
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    train(build(options.layers), options.steps)
