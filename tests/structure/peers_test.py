#!/usr/bin/env python3
"""peers_test.py ROOT: runs benchmarks/peers/sdpa.py and step.py with a PyTorch that computes nothing and fails on request,
and with a stand-in for poolgrad's program. A failed measurement is reported and does not end the others."""
import os
import pathlib
import subprocess
import sys
import tempfile

TORCH = '''
import contextlib, os, sys, time

__version__ = "0"
float32, float16, bfloat16 = "f32", "f16", "bf16"
no_grad = contextlib.nullcontext


class Tensor:
    shape, dtype = (1, 2, 3), float32

    def split(self, *_):
        return [self] * 3

    def same(self, *_):
        return self

    view = transpose = reshape = float = backward = requires_grad_ = __add__ = __getitem__ = same


def tensor(*_, **__):
    return Tensor()


randn = randint = tensor


def nothing(*_, **__):
    return 1


manual_seed = set_num_threads = get_num_threads = nothing


def autocast(*_, **__):
    return contextlib.nullcontext()


def compile(model):
    def slow(*arguments):
        time.sleep(1.5)
        return model(*arguments)

    return slow


class autograd:
    grad = nothing


class compiler:
    reset = nothing


class optim:
    class AdamW:
        def __init__(self, *_, **__):
            pass

        step = zero_grad = nothing


class cuda:
    get_device_name = synchronize = empty_cache = nothing

    def max_memory_allocated():
        if sys.argv[-1] == "1":
            raise RuntimeError("CUDA out of memory. Tried to allocate 8.00 GiB")
        return 5 << 20
'''
NN = '''
from torch import Tensor, tensor


class Module:
    def to(self, _):
        return self

    def parameters(self):
        return []

    def __call__(self, *arguments):
        return self.forward(*arguments)


class Layer(Module):
    def __init__(self, *_):
        self.weight = Tensor()

    forward = tensor


Linear = LayerNorm = Embedding = Sequential = Layer
'''
FUNCTIONAL = '''
from torch import tensor
from torch.nn import attention

gelu = linear = cross_entropy = tensor


def scaled_dot_product_attention(*_, **__):
    if attention.chosen == "flash":
        raise RuntimeError("No available kernel. Aborting execution.")
    if attention.chosen == "math":
        raise RuntimeError("CUDA out of memory. Tried to allocate 8.00 GiB")
    return tensor()
'''
ATTENTION = '''
import contextlib

chosen = None


class SDPBackend:
    FLASH_ATTENTION, CUDNN_ATTENTION, EFFICIENT_ATTENTION, MATH = "flash", "cudnn", "efficient", "math"


@contextlib.contextmanager
def sdpa_kernel(kernel):
    global chosen
    chosen = kernel
    yield
    chosen = None
'''
PROGRAM = '''#!{python}
import os, sys

cores = "portable" if os.environ.get("POOLGRAD_MMA") == "0" else "tensor cores"
attention = any(word.startswith("forward") for word in sys.argv)
if attention:
    print("1e9", flush=True)
for number, line in enumerate(sys.stdin):
    if "{mortal}" in sys.argv and number == 2:
        sys.exit(3)
    step = "0.75 12 22" if "recorded" in sys.argv else "1.5 10 20"
    print("1.5" if attention else step if cores == "portable" else "0.5 7 8", flush=True)
'''


def main(root):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "torch" / "nn").mkdir(parents=True)
        for path, text in {"torch/__init__": TORCH, "torch/nn/__init__": NN, "torch/nn/functional": FUNCTIONAL,
                           "torch/nn/attention": ATTENTION}.items():
            (folder / f"{path}.py").write_text(text)

        def said(peer, *options, mortal="nobody"):
            """Returns its output; a compilation takes a second too long."""
            program, script = folder / "program", folder / peer
            program.write_text(PROGRAM.format(python=sys.executable, mortal=mortal))
            program.chmod(0o755)
            script.write_text((pathlib.Path(root) / "benchmarks" / "peers" / peer).read_text().replace(
                "COMPILE_SECONDS = 30", "COMPILE_SECONDS = 1"))
            options = [str(program) if option == "PROGRAM" else option for option in options]
            return subprocess.run([sys.executable, script, *options], text=True, capture_output=True, check=True,
                                  env=os.environ | {"PYTHONPATH": name, "PYTHONDONTWRITEBYTECODE": "1"}).stdout

        def expect(text, *parts):
            for part in parts:
                if part not in text:
                    sys.exit(f"'{part}' is not in:\n{text}")

        attention = ["PROGRAM", "--device", "cuda", "--repeats", "2", "--lengths", "64"]
        text = said("sdpa.py", *attention)
        expect(text, "f32  dense  forward          n=   64 H=16: poolgrad     1.50 ms", "cudnn     0.0", "efficient     0.0",
               "flash: not for these operands", "math: out of memory", "bf16 forward_backward: geometric mean of the ratios")
        text = said("sdpa.py", *attention, mortal="causal")
        expect(text, "f32  causal forward          n=   64 H=16: poolgrad's program ended with status 3",
               "bf16 dense  forward          n=   64 H=16: poolgrad     1.50 ms")

        text = said("step.py", "--device=cuda", "PROGRAM", "2", "3")
        expect(text, "(B,T,C,L,H,V) = (8, 512, 256, 6, 4, 256)", "  f32 poolgrad 1.50 ms (best 1.50), peak 10 MiB in the pool",
               "  f32, recorded poolgrad 0.75 ms (best 0.75), peak 12 MiB in the pool", " to recorded\n",
               "  bf16, tensor cores poolgrad 0.50 ms", "  bf16, tensor cores, recorded poolgrad 0.50 ms",
               "PyTorch compiled not compiled within 1 s", " to tensor cores, ", " to tensor cores, recorded\n",
               "PyTorch eager 5 MiB, with math attention out of memory")
        text = said("step.py", "--device=cuda", "PROGRAM", "2", "3", mortal="bf16")
        expect(text, "  f32 poolgrad 1.50 ms", "  bf16 poolgrad: ended with status 3", "       PyTorch eager 0.0")


if __name__ == "__main__":
    main(sys.argv[1])
