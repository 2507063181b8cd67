"""Models of real torch compute: for CPUs a ResNet of 1.2 million parameters and a transformer of 20 million; for a GPU
ResNet-50 (26 million) and a GPT of 124 million.
"""

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


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut (He et al. 2016), with BatchNorm."""

    def __init__(self, into, width, stride):
        super().__init__()
        shapes = ((into, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        self.parts = nn.Sequential(*(part for shape in shapes for part in self.normed(*shape)))
        self.parts.pop(-1)  # the last ReLU comes after the sum
        same = into == 4 * width and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(*self.normed(into, 4 * width, 1, stride)[:2])

    @staticmethod
    def normed(into, out, size, stride):
        convolution = nn.Conv2d(into, out, size, stride=stride, padding=size // 2, bias=False)
        return convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True)

    def forward(self, x):
        return (self.parts(x) + self.short(x)).relu()


def resnet50():
    """ResNet-50, and a batch of 32 images of 224x224."""
    layers, into = [*Bottleneck.normed(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(blocks):
            layers.append(Bottleneck(into, width, 2 if number == 0 and width > 64 else 1))
            into = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 1000))
    return model, torch.randn(32, 3, 224, 224), torch.randint(1000, (32,))


class Transformer(nn.Module):
    """An encoder over tokens, normalised first, with a linear decoder, perhaps of the embedding's weights."""

    def __init__(self, vocabulary, width, depth, length, *, heads=8, tied=False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        options = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(width, heads, 4 * width, **options) for _ in range(depth))
        )
        self.decoder = nn.Linear(width, vocabulary)
        if tied:
            self.decoder.weight = self.tokens.weight

    def forward(self, x):
        return self.decoder(self.layers(self.tokens(x) + self.places)).transpose(1, 2)


def transformer():
    """6 layers of width 512, and a batch of 2 sequences of 64 tokens."""
    x = torch.randint(1000, (2, 64))
    return Transformer(1000, 512, 6, 64), x, x.roll(-1, 1)


def gpt():
    """12 layers of width 768 as in GPT-2, and a batch of 8 sequences of 256 tokens."""
    x = torch.randint(50257, (8, 256))
    return Transformer(50257, 768, 12, 256, heads=12, tied=True), x, x.roll(-1, 1)


MODELS = {"resnet": resnet, "transformer": transformer}
ON_GPU = {"resnet50": resnet50, "gpt": gpt}
