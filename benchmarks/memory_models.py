"""Programs whose memory `benchmarks/memory.py` records: four models, and ways to run out of memory.

``python benchmarks/memory_models.py KIND [SIZE] [LIMIT_MIB]``. KIND is a model (``gpt``, ``resnet``, ``unet``,
``llama``) or a plan: ``leak``, ``forward``, ``backward``, ``optimizer``, ``fragments``, ``other``, ``search``.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n1, self.n2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any, cache: Any = None) -> Any:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.n1(x)).chunk(3, -1))
        if cache is not None:
            k, v = (torch.cat([old, new], 2) for old, new in zip(cache, (k, v), strict=True)) if cache else (k, v)
            cache[:] = [k, v]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 8000, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.h = nn.ModuleList(Block(width, 8) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Any, caches: Any = None) -> Any:
        x = self.wte(ids)
        for number, block in enumerate(self.h):
            x = block(x, caches[number] if caches else None)
        return self.head(x if caches is None else x[:, -1:])


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c1, self.c2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.b1, self.b2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.b2(self.c2(F.relu(self.b1(self.c1(x))))))


class ResNet(nn.Module):
    def __init__(self, width: int = 64, layers: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3)
        self.layers = nn.Sequential(*(Residual(width) for _ in range(layers)))
        self.fc = nn.Linear(width, 1000)

    def forward(self, x: Any) -> Any:
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down = nn.ModuleList(Residual(width) for _ in range(3))
        self.up = nn.ModuleList(Residual(width) for _ in range(3))

    def forward(self, x: Any) -> Any:
        x, kept = self.stem(x), []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        for block in self.up:
            x = block(F.interpolate(x, scale_factor=2) + kept.pop())
        return self.out(x)


def step_of(kind: str, size: int) -> Callable[[], object]:
    """Return one step of a model: of training, and of ``llama`` the generation of 24 tokens by a batch of ``size``."""
    if kind == "llama":
        return generation(size)
    model = {"gpt": GPT, "resnet": ResNet, "unet": UNet}[kind]().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        if kind == "gpt":
            ids = torch.randint(0, 8000, (size, 512), device="cuda")
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        else:
            images = torch.randn(size, 3, 128, 128, device="cuda")
            loss = model(images).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def generation(size: int) -> Callable[[], object]:
    model = GPT(16_000, 1024, 8).to("cuda", torch.bfloat16).eval()

    @torch.no_grad()
    def generate() -> None:
        caches: list[list[Any]] = [[] for _ in model.h]
        ids = torch.randint(0, 16_000, (size, 256), device="cuda")
        for _ in range(24):
            ids = model(ids, caches).argmax(-1)

    return generate


def limit(megabytes: float) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(megabytes * 2**20 / total, 1.0))


def limit_to_reserved(more_megabytes: float) -> None:
    limit(torch.cuda.memory_reserved() / 2**20 + more_megabytes)


def leak(size: int) -> None:
    """Keep the losses of an evaluation with their graphs."""
    model, losses = GPT().cuda(), []
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(12):
        ids = torch.randint(0, 8000, (size, 512), device="cuda")
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(model(ids[:1]).square().mean())  # LEAK


def fail_in_backward(size: int) -> None:
    model = GPT().cuda()
    ids = torch.randint(0, 8000, (size, 512), device="cuda")
    F.cross_entropy(model(ids[:1]).flatten(0, 1), ids[:1].flatten()).backward()
    model.zero_grad()
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    limit_to_reserved(4)
    loss.backward()


def fail_in_optimizer(size: int) -> None:
    model = GPT(width=1024, layers=8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 8000, (size, 128), device="cuda")
    F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    torch.cuda.empty_cache()
    limit_to_reserved(64)
    optimizer.step()


def fail_by_fragments(size: int) -> None:
    pieces = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(size)]
    del pieces[::2]
    limit_to_reserved(8)
    torch.empty(64 << 20, dtype=torch.uint8, device="cuda")


def _hold(queue: Any, done: Any) -> None:
    free, _ = torch.cuda.mem_get_info()
    kept = torch.empty(free - (3 << 30), dtype=torch.uint8, device="cuda")
    queue.put(len(kept))
    done.get()


def fail_by_another_process(size: int) -> None:
    context = multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    ours = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PROFPIPE_")}
    child = context.Process(target=_hold, args=(queue, done))
    child.start()
    os.environ.update(ours)
    queue.get()
    try:
        step_of("gpt", size)()
    finally:
        done.put(1)
        child.join()


def search(size: int) -> None:
    """Halve the batch until it fits, as many programs do."""
    limit(3000)
    while True:
        try:
            step_of("gpt", size)()
        except torch.OutOfMemoryError:
            size //= 2
            torch.cuda.empty_cache()
        else:
            break
    step = step_of("gpt", size)
    for _ in range(6):
        step()


def fail_in_forward(size: int) -> None:
    limit(2000)
    step_of("gpt", size)()


PLANS: dict[str, tuple[Callable[[int], None], int]] = {
    "leak": (leak, 8),
    "forward": (fail_in_forward, 64),
    "backward": (fail_in_backward, 16),
    "optimizer": (fail_in_optimizer, 1),
    "fragments": (fail_by_fragments, 100),
    "other": (fail_by_another_process, 256),
    "search": (search, 64),
}


def main() -> None:
    kind, size = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if kind in PLANS:
        plan, usual = PLANS[kind]
        plan(size or usual)
        return
    if len(sys.argv) > 3:
        limit(float(sys.argv[3]))
    step = step_of(kind, size or 8)
    for _ in range(12):
        step()
    print("peak", torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
