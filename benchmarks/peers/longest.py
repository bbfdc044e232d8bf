#!/usr/bin/env python3
"""The memory of long contexts in PyTorch, and the longest that fits: the peer of `./run plan --longest`.

Usage: python3 benchmarks/peers/longest.py [memory in GiB, 8] [context ...]

Trains the model of docs/guides/memory.md for two steps at each context (default: 4096 8192 16384): 6 layers, width 512,
8 heads, causal attention, f32 parameters, AdamW, torch.utils.checkpoint over every block. Activations are bf16 under
autocast if the CPU has bf16 products. Otherwise they are f32, because PyTorch would take minutes for a few hundred
tokens. Each context has a separate process. Prints the peak memory beyond the process at rest and the time of the
second step, and extrapolates the last two contexts to the one that needs the given memory.
"""
import resource
import subprocess
import sys
import time

LAYERS, WIDTH, HEADS, VOCABULARY = 6, 512, 8, 256


def resident_peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train(context):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            B, T, _ = x.shape
            q, k, v = (t.view(B, T, HEADS, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(WIDTH, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(B, T, WIDTH))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

        def forward(self, tokens, targets):
            x = self.tokens(tokens)
            if bf16:
                x = x.bfloat16()
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            logits = F.linear(self.norm(x), self.tokens.weight)
            return F.cross_entropy(logits.view(-1, VOCABULARY).float(), targets.view(-1))

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    tokens, targets = torch.randint(VOCABULARY, (1, context)), torch.randint(VOCABULARY, (1, context))
    rest, seconds = resident_peak(), 0.0
    for _ in range(2):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - start
    print(resident_peak() - rest, seconds, "bf16" if bf16 else "f32")


def main():
    memory = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
    found = []
    print(f"{'context':>9} {'MiB':>9} {'bytes a token':>14} {'s a step':>9} dtype")
    for context in [int(text) for text in sys.argv[2:]] or [4096, 8192, 16384]:
        run = subprocess.run([sys.executable, __file__, "--train", str(context)], capture_output=True, text=True, check=True)
        *numbers, dtype = run.stdout.split()
        peak, seconds = (float(text) for text in numbers)
        found.append((context, peak))
        print(f"{context:>9} {peak / 2**20:>9.0f} {peak / context:>14.0f} {seconds:>9.2f} {dtype:>5}", flush=True)
    if len(found) > 1:
        (first, low), (last, high) = found[-2:]
        slope = (high - low) / (last - first)
        fits = last + (memory * 2**30 - high) / slope
        print(f"{slope:.0f} bytes for each token more: about {fits:,.0f} tokens in {memory:g} GiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(int(sys.argv[2]))
    else:
        main()
