"""Train a convolutional network that waits for its data loader, and print the time of a step.

    python loader.py [--workers N] [--read-ms MS]

Reading an image takes ``--read-ms`` milliseconds, as from a slow disk. The program knows nothing of profpipe.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Images(torch.utils.data.Dataset):
    def __init__(self, count, read_ms):
        self.count, self.read_ms = count, read_ms

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.read_ms / 1e3)
        return torch.rand(3, 128, 128), index % 100


def network(width):
    layers, channels = [], 3
    for out in (width, 2 * width, 4 * width, 8 * width):
        layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        layers += [nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 100))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--read-ms", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = network(args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = Images(args.steps * args.batch, args.read_ms)
    loader = torch.utils.data.DataLoader(data, args.batch, num_workers=args.workers, pin_memory=device.type == "cuda")
    warmup, began = args.steps // 3, 0.0
    for step, (images, labels) in enumerate(loader):
        if step == warmup:
            began = now(device)
        loss = F.cross_entropy(model(images.to(device, non_blocking=True)), labels.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{1e3 * (now(device) - began) / (args.steps - warmup):.2f} ms per step")


def now(device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
