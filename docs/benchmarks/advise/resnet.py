"""Trains a small ResNet (He et al. 2016, for CIFAR) on noise. It knows nothing of dear-mpi.

python docs/benchmarks/advise/resnet.py [--steps 40] [--width 64]
"""

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, into, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or into != out:
            self.shortcut = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, width=64, blocks=2, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True))
        layers, into = [], width
        for stage in range(4):
            for number in range(blocks):
                out = width << stage
                layers.append(Block(into, out, 2 if stage and not number else 1))
                into = out
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(into, classes)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


def build(width=64):
    torch.manual_seed(0)
    return ResNet(width)


def train(model, steps, batch=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for _ in range(steps):
        images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    train(build(options.width), options.steps)
