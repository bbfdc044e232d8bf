#!/usr/bin/env python3
"""Attention, poolgrad's attend() and PyTorch's scaled_dot_product_attention in turn, in one run, with the same threads.

Usage: python3 benchmarks/peers/sdpa.py path/to/attention_benchmark [--repeats 7] [--lengths 1024 4096 16384]
       [--dtypes f32 bf16] [--patterns dense causal delta gla] [--passes forward forward_backward] [--device cuda]

Prints the medians of both in ms and GFLOP/s, counted on the pairs that the pattern admits (forward 4 D, backward 10 D),
and PyTorch / poolgrad (above 1: poolgrad is faster): of the medians, and the quartiles over neighboring pairs. On a GPU
prints this for each of PyTorch's kernels by name, or the reason for a missing figure. The last lines are the geometric
means of the ratios to the fastest kernel. POOLGRAD_MMA=0 keeps poolgrad from tensor cores.
"""
import argparse
import math
import os
import statistics
import subprocess
import time
import warnings

HEADS = {1024: 8, 4096: 4, 16384: 1}
GPU_HEADS = 16
DEPTH = 64


def torch_kernels(device):
    """Returns the names of PyTorch's attention kernels; on a CPU PyTorch chooses."""
    return ["flash", "cudnn", "efficient", "math"] if device == "cuda" else ["own choice"]


def reason_of(error):
    """Returns why a call of PyTorch failed, in a few words."""
    if "out of memory" in str(error):
        return "out of memory"
    return "not for these operands" if "No available kernel" in str(error) else str(error).strip().split("\n")[0][:60]


def torch_call(dtype, pattern, backward, length, heads, device, kernel):
    """Returns a function that makes one call and waits for it."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
                "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
    call = unsynchronised_call(dtype, pattern, backward, length, heads, device)

    def run():
        if device == "cpu":
            return call()
        with sdpa_kernel(backends[kernel]):
            call()
        torch.cuda.synchronize()

    return run


def delta_rule(q, k, v, beta, gate, delta, chunk=64):
    """The gated delta rule by chunks in PyTorch's operators; q, k, v (B, H, T, D), beta and gate (B, H, T)."""
    import torch

    def chunks(x):
        return (x if x.dtype == torch.float64 else x.float()).unflatten(2, (-1, chunk))

    q, k, v, beta, gate = map(chunks, (q, k, v, beta, gate))
    since = gate.cumsum(-1)
    decay = (since.unsqueeze(-1) - since.unsqueeze(-2)).tril().exp().tril()
    scores = (q @ k.transpose(-1, -2)) * decay
    of_values = beta.unsqueeze(-1) * v
    if delta:
        lower = ((k @ k.transpose(-1, -2)) * decay * beta.unsqueeze(-1)).tril(-1)
        right = torch.cat([of_values, k * (beta * since.exp()).unsqueeze(-1)], -1)
        solved = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
        of_values, of_state = solved.split(v.shape[-1], -1)
        of_state = of_state.unbind(2)
    first = (q * since.exp().unsqueeze(-1)).unbind(2)
    last = (k * (since[..., -1:] - since).exp().unsqueeze(-1)).transpose(-1, -2).unbind(2)
    kept = since[..., -1].exp().unsqueeze(-1).unsqueeze(-1).unbind(2)
    state, out = 0.0, []
    for i, (u, within) in enumerate(zip(of_values.unbind(2), scores.unbind(2))):
        if i == 0:
            out.append(within @ u)
            state = last[i] @ u
            continue
        if delta:
            u = u - of_state[i] @ state
        out.append(first[i] @ state + within @ u)
        state = kept[i] * state + last[i] @ u
    return torch.cat(out, 2)


def delta_rule_call(dtype, delta, backward, length, heads, device):
    import torch

    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    q, k, v, gradient = (torch.randn(1, heads, length, DEPTH, dtype=kind, device=device) for _ in range(4))
    k *= 0.125
    beta, gate = torch.rand(1, heads, length, device=device), -0.1 * torch.rand(1, heads, length, device=device)
    operands = (q, k, v, beta, gate)
    for x in operands:
        x.requires_grad_(backward)

    def call():
        with torch.set_grad_enabled(backward):
            out = delta_rule(*operands, delta).to(kind)
            if backward:
                torch.autograd.grad(out, operands, gradient)

    return call


def unsynchronised_call(dtype, pattern, backward, length, heads, device):
    import torch
    import torch.nn.functional as F

    if pattern in ("delta", "gla"):
        return delta_rule_call(dtype, pattern == "delta", backward, length, heads, device)
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    q, k, v, gradient = (torch.randn(1, heads, length, DEPTH, dtype=kind, device=device) for _ in range(4))
    if not backward:

        def forward():
            with torch.no_grad():
                F.scaled_dot_product_attention(q, k, v, is_causal=pattern == "causal")

        return forward
    for x in (q, k, v):
        x.requires_grad_(True)

    def forward_backward():
        out = F.scaled_dot_product_attention(q, k, v, is_causal=pattern == "causal")
        torch.autograd.grad(out, (q, k, v), gradient)

    return forward_backward


class Ended(Exception):
    pass


class Poolgrad:
    def __init__(self, program, dtype, pattern, step, length, heads, threads, device):
        numbers = map(str, (1, length, length, heads, DEPTH))
        self.process = subprocess.Popen(
            [program, "--device=" + device, "--serve", dtype, pattern, step, *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"POOLGRAD_THREADS": str(threads)},
        )
        self.operations = self.number()

    def number(self):
        line = self.process.stdout.readline()
        if not line:
            raise Ended(f"poolgrad's program ended with status {self.process.wait()}")
        return float(line)

    def call(self):
        """Returns milliseconds."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # number() says so
        return self.number()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def seconds_of(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def compare(options, dtype, pattern, step, length, threads):
    """Prints one line; returns the ratio of the medians to the fastest kernel, None if there is no figure."""
    heads = HEADS.get(length, 1) if options.device == "cpu" else GPU_HEADS
    name = f"{dtype:4} {pattern:6} {step:16} n={length:5} H={heads}"
    try:
        return compare_one(options, dtype, pattern, step, length, heads, threads, name)
    except Ended as error:
        print(f"{name}: {error}", flush=True)
        return None


def compare_one(options, dtype, pattern, step, length, heads, threads, name):
    ours = Poolgrad(options.program, dtype, pattern, step, length, heads, threads, options.device)
    theirs, missing = {}, {}
    for kernel in torch_kernels(options.device):
        try:
            call = torch_call(dtype, pattern, step == "forward_backward", length, heads, options.device, kernel)
            for _ in range(3):
                call()
            theirs[kernel] = call
        except RuntimeError as error:  # not enough memory is one of them
            missing[kernel] = reason_of(error)
            give_back(options.device)
    ours.call()
    our_times, their_times = [], {kernel: [] for kernel in theirs}
    for _ in range(options.repeats):
        our_times.append(ours.call())
        for kernel, call in theirs.items():
            their_times[kernel].append(seconds_of(call) * 1e3)
    ours.close()
    a, rate = statistics.median(our_times), ours.operations * 1e-6
    found = []
    for kernel, times in their_times.items():
        b = statistics.median(times)
        ratios = sorted(t / o for o, t in zip(our_times, times))
        found.append(f"{kernel} {b:8.2f} ms {rate / b:6.1f} GFLOP/s, ratio {b / a:.2f} "
                     f"({ratios[len(ratios) // 4]:.2f} to {ratios[-1 - len(ratios) // 4]:.2f})")
    found += [f"{kernel}: {reason}" for kernel, reason in missing.items()]
    print(f"{name}: poolgrad {a:8.2f} ms {rate / a:6.1f} GFLOP/s; "
          f"PyTorch {'; '.join(found)}", flush=True)
    del theirs
    give_back(options.device)
    return min((statistics.median(times) / a for times in their_times.values()), default=None)


def give_back(device):
    """Frees the memory that PyTorch caches, for poolgrad's process."""
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(HEADS))
    parser.add_argument("--dtypes", nargs="+", default=["f32", "bf16"])
    parser.add_argument("--patterns", nargs="+", default=["dense", "causal"])
    parser.add_argument("--passes", nargs="+", default=["forward", "forward_backward"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()

    import torch

    warnings.filterwarnings("ignore")  # each kernel's reasons, at length
    threads = int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads()))
    torch.set_num_threads(threads)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{threads} threads"
    print(f"PyTorch {torch.__version__}, {where}, D = {DEPTH}, {options.repeats} calls each, in turn")
    for dtype in options.dtypes:
        for step in options.passes:
            ratios = [
                compare(options, dtype, pattern, step, length, threads)
                for pattern in options.patterns
                for length in options.lengths
            ]
            logarithms = [math.log(ratio) for ratio in ratios if ratio]
            if logarithms:
                print(f"{dtype} {step}: geometric mean of the ratios {math.exp(statistics.mean(logarithms)):.2f}", flush=True)


if __name__ == "__main__":
    main()
