#!/usr/bin/env python3
"""One training step of four small language models in f32 and in bf16, poolgrad and PyTorch in turn, in one run.

Usage: python3 benchmarks/peers/step.py [--device=cuda] path/to/step_benchmark [repeats] [configuration number ...]

PyTorch runs each model eagerly and through torch.compile, in bf16 under autocast (parameters stay f32, as poolgrad's
do). Prints the medians and PyTorch / poolgrad in the same dtype (above 1: poolgrad is faster; in brackets the middle
half of the pairs). Prints the peak memory of each step beyond the process at rest: poolgrad's pool and resident
memory, and PyTorch's resident memory, in f32 also with attention as matrix products. On a GPU, also measures a long
context, poolgrad's recorded steps, and in bf16 its attention by tensor cores; PyTorch's memory is then that of its
allocator. Names each figure that is missing, for lack of memory or after COMPILE_SECONDS of compilation, and
continues.
"""
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time

DTYPES = ["f32", "bf16"]
CONFIGURATIONS = [(12, 64, 128, 4, 4, 65), (8, 256, 192, 4, 6, 256), (1, 2048, 128, 4, 4, 256), (8, 512, 256, 6, 4, 256)]
VARIANTS = DTYPES  # of poolgrad
ON_A_GPU = [dtype + recorded for dtype in ["f32", "bf16", "bf16, tensor cores"] for recorded in ["", ", recorded"]]
DEVICE = "cpu"
COMPILE_SECONDS = 30  # on a GPU; no limit elsewhere


class Failed(Exception):
    """The reason, in a few words."""


def reason_of(error):
    text = str(error).strip() or type(error).__name__
    return "out of memory" if "out of memory" in text or "OutOfMemory" in text else text.split("\n")[-1][:80]


def torch_model(configuration, math_attention=False):
    """Returns a model of (tokens, targets, rows of the batch with a target or None for all), whose result is the loss."""
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

        def forward(self, tokens, targets, asked=None):
            x = self.norm(self.blocks(self.tokens(tokens) + self.positions.weight[None])).view(-1, C)
            if asked is not None:
                x = x[asked]
            logits = F.linear(x, self.tokens.weight)
            # The loss at least in f32, as poolgrad's is.
            return F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, targets.view(-1))

    return Model()


def torch_step(configuration, dtype="f32", compiled=False, math_attention=False, data=None):
    """Returns a function that takes one step, on random data unless `data` has the model's operands."""
    import torch

    B, T, V = configuration[0], configuration[1], configuration[5]
    model = torch_model(configuration, math_attention).to(DEVICE)
    loss = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    data = data or [torch.randint(V, (B, T), device=DEVICE) for _ in range(2)]

    def step():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == "bf16"):
            value = loss(*data)
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
    torch_step((1, 8, 8, 1, 1, 8), dtype)()  # the memory of PyTorch itself
    import torch

    before = resident("VmRSS")
    step = torch_step(configuration, dtype, math_attention=math_attention)
    for _ in range(3):
        step()
    print(torch.cuda.max_memory_allocated() / 2**20 if DEVICE == "cuda" else resident("VmHWM") - before)


def torch_memory(number, dtype, math_attention=False):
    """"123 MiB", or why there is no figure."""
    command = [sys.executable, __file__, "--device=" + DEVICE, "--memory", str(number), dtype, str(int(math_attention))]
    run = subprocess.run(command, capture_output=True, text=True)
    return reason_of(run.stderr) if run.returncode else f"{float(run.stdout):.0f} MiB"


class Poolgrad:
    def __init__(self, program, configuration, variant):
        dtype, *how = variant.split(", ")
        arguments = [program, "--device=" + DEVICE, "--serve", *map(str, configuration), dtype]
        arguments += [word for word in how if word in ("recorded", "mqar")]
        environment = os.environ | {"POOLGRAD_MMA": str(int("tensor cores" in how))}
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def step(self):
        """Returns milliseconds, and the peaks of pool and resident memory in MiB."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its answer shows the failure
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"ended with status {self.process.wait()}")
        return [float(word) for word in line.split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def warmed_up(step, seconds=0):
    """Calls it three times. Raises Failed if a call fails or takes longer."""

    begin = time.perf_counter()

    def over(*_):
        raise Failed(f"not compiled within {seconds} s")

    signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        for _ in range(3):
            step()
    except Failed:
        raise
    except Exception as error:
        if seconds and time.perf_counter() - begin >= seconds:
            over()  # the compiler caught Failed
        raise Failed(reason_of(error)) from None
    finally:
        signal.alarm(0)


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

    torch.compiler.reset()  # else it compiles the next configuration for varying sizes
    configuration = CONFIGURATIONS[number]
    print(f"(B,T,C,L,H,V) = {configuration}", flush=True)
    steps, servers = {}, []
    for variant in VARIANTS:
        servers.append(Poolgrad(program, configuration, variant))
        steps[f"{variant} poolgrad"] = servers[-1].step
    for dtype, mode in itertools.product(DTYPES, ["eager", "compiled"]):
        steps[f"{dtype} PyTorch {mode}"] = torch_step(configuration, dtype, compiled=mode == "compiled")
    failed = {}
    for name, step in steps.items():
        try:
            warmed_up(step, COMPILE_SECONDS if DEVICE == "cuda" and "compiled" in name else 0)
        except Failed as error:
            failed[name] = str(error)
    found = {name: [] for name in steps if name not in failed}
    for _ in range(repeats):
        for name in list(found):
            begin = time.perf_counter()
            try:
                answer = steps[name]()
            except (Failed, RuntimeError) as error:
                failed[name] = reason_of(error)
                del found[name]
                continue
            found[name].append(answer or [(time.perf_counter() - begin) * 1e3])
    for server in servers:
        server.close()
    report(number, steps, found, failed)


def report(number, names, found, failed):
    times = {name: [answer[0] for answer in answers] for name, answers in found.items()}
    for dtype in DTYPES:
        ours = [name for name in names if name.startswith(dtype) and name.endswith("poolgrad")]
        for name in ours:
            if name in failed:
                print(f"  {name}: {failed[name]}", flush=True)
                continue
            _, pool, resident_peak = found[name][-1]
            print(f"  {name} {statistics.median(times[name]):.2f} ms (best {min(times[name]):.2f}), peak {pool:.0f} MiB in "
                  f"the pool, {resident_peak:.0f} MiB resident", flush=True)
        for peer in (name for name in names if name.startswith(dtype + " PyTorch")):
            print(f"       {peer[len(dtype) + 1:]} " + (failed.get(peer) or against(times[peer], {
                name: times[name] for name in ours if name in times})), flush=True)
        math = f", with math attention {torch_memory(number, dtype, True)}" if dtype == "f32" else ""
        print(f"       PyTorch eager {torch_memory(number, dtype)}{math}", flush=True)


def against(theirs, ours):
    text = f"{statistics.median(theirs):.2f} ms (best {min(theirs):.2f})"
    for name, times in ours.items():
        ratios = sorted(t / o for o, t in zip(times, theirs))
        how = ", ".join(name.removesuffix(" poolgrad").split(", ")[1:])
        text += (f", ratio {statistics.median(theirs) / statistics.median(times):.2f} ({ratios[len(ratios) // 4]:.2f} to "
                 f"{ratios[-1 - len(ratios) // 4]:.2f})" + (f" to {how}" if how else ""))
    return text


if __name__ == "__main__":
    if "--device=cuda" in sys.argv:
        sys.argv.remove("--device=cuda")
        DEVICE, VARIANTS = "cuda", ON_A_GPU
        CONFIGURATIONS.append((1, 16384, 512, 6, 8, 256))
    elif "--device=cpu" in sys.argv:
        sys.argv.remove("--device=cpu")
    if sys.argv[1:2] == ["--memory"]:
        print_torch_memory(CONFIGURATIONS[int(sys.argv[2])], sys.argv[3], sys.argv[4] == "1")
    elif len(sys.argv) < 2:
        sys.exit(__doc__)
    else:
        main(sys.argv[1], *map(int, sys.argv[2:3]), *([list(map(int, sys.argv[3:]))] if sys.argv[3:] else []))
