"""Models of real torch compute: a small ResNet of 1.2 million parameters, a transformer of 20 million."""

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions beside a shortcut, as in ResNet for CIFAR (He et al. 2016), with GroupNorm."""

    def __init__(self, into, out, stride):
        super().__init__()
        self.first = nn.Conv2d(into, out, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(8, out)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(8, out)
        self.short = nn.Identity() if into == out and stride == 1 else nn.Conv2d(into, out, 1, stride=stride)

    def forward(self, x):
        y = self.first_norm(self.first(x)).relu()
        return (self.second_norm(self.second(y)) + self.short(x)).relu()


def resnet():
    """ResNet of 22 layers, and a batch of 8 images."""
    layers, into = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.GroupNorm(8, 32), nn.ReLU()], 32
    for out, blocks in ((32, 3), (64, 4), (128, 3)):
        for number in range(blocks):
            layers.append(Block(into, out, 2 if number == 0 and out > 32 else 1))
            into = out
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 10))
    return model, torch.randn(8, 3, 32, 32), torch.randint(10, (8,))


class Transformer(nn.Module):
    """An encoder over tokens, normalised first, with a linear decoder."""

    def __init__(self, vocabulary, width, depth, length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(width, 8, 4 * width, **options) for _ in range(depth)))
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, x):
        return self.decoder(self.layers(self.tokens(x) + self.places)).transpose(1, 2)


def transformer():
    """6 layers of width 512, and a batch of 2 sequences of 64 tokens."""
    x = torch.randint(1000, (2, 64))
    return Transformer(1000, 512, 6, 64), x, x.roll(-1, 1)


MODELS = {"resnet": resnet, "transformer": transformer}
