#!/usr/bin/env python3
"""One training step of four small language models in f32 and in bf16, poolgrad and PyTorch in turn, in one run.

Usage: python3 benchmarks/peers/step.py [--device=cuda] path/to/step_benchmark [repeats] [configuration number ...]

PyTorch runs each eager and through torch.compile, in bf16 under autocast (parameters stay f32, as poolgrad's do). Prints
the medians, PyTorch / poolgrad in the same dtype (above 1: poolgrad is faster; in brackets the middle half of the pairs),
and what each step needs at most beyond its process at rest: poolgrad's pool and resident memory, PyTorch's resident
memory, in f32 also with attention as matrix products. On a GPU a long context is measured too, and of PyTorch's memory what
its allocator handed out.
"""
import itertools
import os
import statistics
import subprocess
import sys
import time

DTYPES = ["f32", "bf16"]
CONFIGURATIONS = [(12, 64, 128, 4, 4, 65), (8, 256, 192, 4, 6, 256), (1, 2048, 128, 4, 4, 256), (8, 512, 256, 6, 4, 256)]
DEVICE = "cpu"


def torch_step(configuration, dtype="f32", compiled=False, math_attention=False):
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
            # The loss in f32, as poolgrad's is.
            return F.cross_entropy(F.linear(x, self.tokens.weight).view(-1, V).float(), targets.view(-1))

    model = Model().to(DEVICE)
    loss = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    tokens, targets = torch.randint(V, (B, T), device=DEVICE), torch.randint(V, (B, T), device=DEVICE)

    def step():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == "bf16"):
            value = loss(tokens, targets)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return step


def resident(field):
    """VmRSS (now) or VmHWM (peak) of this process, in MiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) / 1024


def print_torch_memory(configuration, dtype, math_attention):
    torch_step((1, 8, 8, 1, 1, 8), dtype)()  # what PyTorch needs to have run at all
    import torch

    before = resident("VmRSS")
    step = torch_step(configuration, dtype, math_attention=math_attention)
    for _ in range(3):
        step()
    print(torch.cuda.max_memory_allocated() / 2**20 if DEVICE == "cuda" else resident("VmHWM") - before)


def torch_memory(number, dtype, math_attention=False):
    command = [sys.executable, __file__, "--device=" + DEVICE, "--memory", str(number), dtype, str(int(math_attention))]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


class Poolgrad:
    def __init__(self, program, configuration, dtype):
        arguments = [program, "--device=" + DEVICE, "--serve", *map(str, configuration), dtype]
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self):
        """Milliseconds, pool's peak and resident peak in MiB."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main(program, repeats=30, numbers=None):
    import torch

    numbers = numbers or range(len(CONFIGURATIONS))

    threads = int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))
    torch.set_num_threads(threads)
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{threads} threads"
    print(f"PyTorch {torch.__version__}, {where}, {repeats} steps each, in turn")
    for number in numbers:
        measure(program, repeats, number)


def measure(program, repeats, number):
    import torch

    torch.compiler.reset()  # else it compiles the next configuration for sizes that vary
    configuration = CONFIGURATIONS[number]
    print(f"(B,T,C,L,H,V) = {configuration}", flush=True)
    ours = {dtype: Poolgrad(program, configuration, dtype) for dtype in DTYPES}
    peers = {(dtype, mode): torch_step(configuration, dtype, compiled=mode == "compiled")
             for dtype, mode in itertools.product(DTYPES, ["eager", "compiled"])}
    for step in [*(server.step for server in ours.values()), *peers.values()]:
        for _ in range(3):
            step()
    our_steps, their_times = {dtype: [] for dtype in ours}, {peer: [] for peer in peers}
    for _ in range(repeats):
        for dtype, server in ours.items():
            our_steps[dtype].append(server.step())
        for peer, step in peers.items():
            begin = time.perf_counter()
            step()
            their_times[peer].append((time.perf_counter() - begin) * 1e3)
    for server in ours.values():
        server.close()
    for dtype, steps in our_steps.items():
        times = [milliseconds for milliseconds, _, _ in steps]
        _, pool, resident_peak = steps[-1]
        print(f"  {dtype:4} poolgrad {statistics.median(times):.2f} ms (best {min(times):.2f}), peak {pool:.0f} MiB in the "
              f"pool, {resident_peak:.0f} MiB resident", flush=True)
        for (peer_dtype, mode), theirs in their_times.items():
            if peer_dtype == dtype:
                ratios = sorted(t / o for o, t in zip(times, theirs))
                print(f"       PyTorch {mode} {statistics.median(theirs):.2f} ms (best {min(theirs):.2f}), ratio "
                      f"{statistics.median(theirs) / statistics.median(times):.2f} ({ratios[len(ratios) // 4]:.2f} to "
                      f"{ratios[-1 - len(ratios) // 4]:.2f})", flush=True)
        math = f", with math attention {torch_memory(number, dtype, True):.0f} MiB" if dtype == "f32" else ""
        print(f"       PyTorch eager {torch_memory(number, dtype):.0f} MiB{math}", flush=True)


if __name__ == "__main__":
    if "--device=cuda" in sys.argv:
        sys.argv.remove("--device=cuda")
        DEVICE = "cuda"
        CONFIGURATIONS.append((1, 16384, 512, 6, 8, 256))
    elif "--device=cpu" in sys.argv:
        sys.argv.remove("--device=cpu")
    if sys.argv[1:2] == ["--memory"]:
        print_torch_memory(CONFIGURATIONS[int(sys.argv[2])], sys.argv[3], sys.argv[4] == "1")
    elif len(sys.argv) < 2:
        sys.exit(__doc__)
    else:
        main(sys.argv[1], *map(int, sys.argv[2:3]), *([list(map(int, sys.argv[3:]))] if sys.argv[3:] else []))
