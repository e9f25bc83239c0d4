"""Decode tokens one by one with a key-value cache, with or without CUDA graphs, and print the time of a token.

    python decode.py [--graphs]

``--graphs`` compiles the model with ``mode="reduce-overhead"``, which replays a CUDA graph for each token. The program
knows nothing of profpipe.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, batch, length, width, heads, device, dtype):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        shape = (batch, heads, length, width // heads)
        self.register_buffer("keys", torch.zeros(shape, device=device, dtype=dtype))
        self.register_buffer("values", torch.zeros(shape, device=device, dtype=dtype))

    def forward(self, x, position, mask):
        q, k, v = self.qkv(self.norm1(x)).view(len(x), 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        attended = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, vocabulary, layers, batch, length, width, heads, device, dtype):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(batch, length, width, heads, device, dtype) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("slots", torch.arange(length, device=device))

    def forward(self, tokens, position):
        x, mask = self.embedding(tokens), (self.slots <= position)[None, None, None]
        for layer in self.layers:
            x = layer(x, position, mask)
        return self.head(self.norm(x)).argmax(-1)


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=32000)
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    model = Decoder(args.vocabulary, args.layers, args.batch, args.tokens, args.width, args.heads, device, dtype)
    model = model.to(device, dtype).eval()
    if args.graphs:
        model = torch.compile(model, mode="reduce-overhead")

    tokens = torch.zeros(args.batch, 1, dtype=torch.long, device=device)
    warmup, began = args.tokens // 4, 0.0
    for index in range(args.tokens):
        if index == warmup:
            synchronize(gpu)
            began = time.perf_counter()
        tokens = model(tokens, torch.tensor([index], device=device)).clone()
    synchronize(gpu)
    print(f"{1e3 * (time.perf_counter() - began) / (args.tokens - warmup):.3f} ms per token")


def synchronize(gpu):
    if gpu:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
