"""Train a GPT on random tokens and print the time of a step.

    python gpt.py [--compile]
    torchrun --nproc-per-node 2 gpt.py --parallel ddp
    torchrun --nproc-per-node 2 gpt.py --parallel fsdp

The program knows nothing of profpipe.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, length, layers, heads, width):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--parallel", choices=["no", "ddp", "fsdp"], default="no")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50304)
    args = parser.parse_args()

    rank, gpu = int(os.environ.get("RANK", 0)), torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if args.parallel != "no":
        dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(rank)
    torch.set_float32_matmul_precision("high")

    model = GPT(args.vocabulary, args.length, args.layers, args.heads, args.width).to(device)
    if args.parallel == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif args.parallel == "fsdp":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    if args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=gpu)

    warmup, began = args.steps // 3, 0.0
    for step in range(args.steps):
        if step == warmup:
            synchronize(gpu)
            began = time.perf_counter()
        tokens = torch.randint(args.vocabulary, (args.batch, args.length + 1)).to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    synchronize(gpu)
    if rank == 0:
        seconds = (time.perf_counter() - began) / (args.steps - warmup)
        print(f"loss {loss.item():.3f}, {1e3 * seconds:.2f} ms per step")
    if dist.is_initialized():
        dist.destroy_process_group()


def synchronize(gpu):
    if gpu:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
