#!/usr/bin/env python3
"""One training step of four small language models, poolgrad and PyTorch (eager, f32) in turn, in one run.

Usage: python3 benchmarks/peers/step.py path/to/step_benchmark [repeats] [configuration number ...]

Prints the medians of both, PyTorch / poolgrad (above 1: poolgrad is faster), and what each step needs at most beyond
its process at rest: poolgrad's pool and resident memory, PyTorch's resident memory with its fused attention and with
attention as matrix products.
"""
import os
import statistics
import subprocess
import sys
import time

CONFIGURATIONS = [(12, 64, 128, 4, 4, 65), (8, 256, 192, 4, 6, 256), (1, 2048, 128, 4, 4, 256), (8, 512, 256, 6, 4, 256)]


def torch_step(configuration, math_attention=False):
    """A function that takes one step."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    B, T, C, L, H, V = configuration
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.qkv, self.out = nn.LayerNorm(C), nn.Linear(C, 3 * C), nn.Linear(C, C)
            self.norm2, self.up, self.down = nn.LayerNorm(C), nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

        def forward(self, x):
            q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(C, 2))
            if math_attention:
                with sdpa_kernel(SDPBackend.MATH):
                    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(V, C), nn.Embedding(T, C)
            self.blocks, self.norm = nn.Sequential(*[Block() for _ in range(L)]), nn.LayerNorm(C)

        def forward(self, tokens, targets):
            x = self.norm(self.blocks(self.tokens(tokens) + self.positions.weight[None]))
            return F.cross_entropy(F.linear(x, self.tokens.weight).view(-1, V), targets.view(-1))

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    tokens, targets = torch.randint(V, (B, T)), torch.randint(V, (B, T))

    def step():
        model(tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def resident(field):
    """VmRSS (now) or VmHWM (peak) of this process, in MiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) / 1024


def print_torch_memory(configuration, math_attention):
    torch_step((1, 8, 8, 1, 1, 8))()  # what PyTorch needs to have run at all
    before = resident("VmRSS")
    step = torch_step(configuration, math_attention)
    for _ in range(3):
        step()
    print(resident("VmHWM") - before)


def torch_memory(number, math_attention):
    command = [sys.executable, __file__, "--memory", str(number), str(int(math_attention))]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


class Poolgrad:
    def __init__(self, program, configuration):
        arguments = [program, "--serve", *map(str, configuration)]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self):
        """Milliseconds, pool's peak and resident peak in MiB."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main(program, repeats=30, numbers=range(4)):
    import torch

    threads = int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))
    torch.set_num_threads(threads)
    print(f"PyTorch {torch.__version__}, {threads} threads, {repeats} steps each, in turn")
    for number in numbers:
        configuration = CONFIGURATIONS[number]
        ours, theirs = Poolgrad(program, configuration), torch_step(configuration)
        for _ in range(3):
            ours.step(), theirs()
        our_times, their_times = [], []
        for _ in range(repeats):
            milliseconds, pool, resident = ours.step()
            our_times.append(milliseconds)
            begin = time.perf_counter()
            theirs()
            their_times.append((time.perf_counter() - begin) * 1e3)
        ours.close()
        a, b = statistics.median(our_times), statistics.median(their_times)
        ratios = sorted(t / o for o, t in zip(our_times, their_times))
        print(
            f"(B,T,C,L,H,V) = {configuration}: poolgrad {a:.2f} ms (best {min(our_times):.2f}), "
            f"PyTorch {b:.2f} ms (best {min(their_times):.2f}), ratio {b / a:.2f} (pairs: {ratios[len(ratios) // 4]:.2f} "
            f"to {ratios[-1 - len(ratios) // 4]:.2f}); peak {pool:.0f} MiB in the pool, {resident:.0f} MiB resident, "
            f"PyTorch {torch_memory(number, False):.0f} MiB, with math attention {torch_memory(number, True):.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        print_torch_memory(CONFIGURATIONS[int(sys.argv[2])], sys.argv[3] == "1")
    elif len(sys.argv) < 2:
        sys.exit(__doc__)
    else:
        main(sys.argv[1], *map(int, sys.argv[2:3]), *([list(map(int, sys.argv[3:]))] if sys.argv[3:] else []))
