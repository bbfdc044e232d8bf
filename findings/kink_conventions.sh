#!/usr/bin/env bash
# Derivatives at kinks, ties and poles by PyTorch, jax, autograd, tinygrad and MLX. Computes every row of the table in
# docs/reference/conventions.md and fails if a cell has changed. The test of the page checks the column of poolgrad.
# --print writes the rows.
set -euo pipefail
cd "$(dirname "$0")"
. ./python.sh
python_with torch==2.15.0 jax==0.10.2 autograd==1.9.1 tinygrad==0.14.0 mlx==0.32.4 mlx-cpu==0.32.4
"$PYTHON" - ../docs/reference/conventions.md "${1:-}" <<'PYTHON'
import math
import os
import re
import sys
import warnings

warnings.simplefilter("ignore")
os.environ.setdefault("DEV", "CPU")
import autograd
import autograd.numpy as anp
import jax
import jax.numpy as jnp
import mlx.core as mx
import mlx.nn as nn
import torch
import torch.nn.functional as F
from autograd.scipy.special import logsumexp as autograd_logsumexp
from tinygrad import Tensor, dtypes

jax.config.update("jax_enable_x64", True)
mx.set_default_device(mx.cpu)
inf, nan = math.inf, math.nan


def by_torch(f, points):
    xs = [torch.tensor(p, dtype=torch.float64, requires_grad=True) for p in points]
    f(*xs).sum().backward()
    return [x.grad.flatten().tolist() for x in xs]


def by_jax(f, points):
    xs = [jnp.array(p, dtype=jnp.float64) for p in points]
    return [g.flatten().tolist() for g in jax.grad(lambda *a: jnp.sum(f(*a)), tuple(range(len(xs))))(*xs)]


def by_autograd(f, points):
    xs = [anp.array(p, dtype=float) for p in points]
    return [anp.ravel(autograd.grad(lambda *a: anp.sum(f(*a)), i)(*xs)).tolist() for i in range(len(xs))]


def by_tinygrad(f, points):
    xs = [Tensor(p, dtype=dtypes.float64) for p in points]
    return [g.flatten().tolist() for g in f(*xs).sum().gradient(*xs)]


def by_mlx(f, points):
    xs = [mx.array(p, dtype=mx.float64) for p in points]
    gradients = mx.grad(lambda *a: mx.sum(f(*a)), tuple(range(len(xs))))(*xs)
    return [g.flatten().tolist() for g in (gradients if isinstance(gradients, tuple) else [gradients])]


def number(x):
    if math.isnan(x): return "NaN"
    return {0.5: "1/2", -0.5: "-1/2"}.get(x, f"{x + 0.0:.4g}")  # + 0.0: no negative zero


def seen(run, f, points):
    return "-" if f is None else "; ".join(", ".join(map(number, g)) for g in run(f, points))


# Row: points, and the function in each library; None where it has none.
ROWS = {
    "abs(x) at 0": ([[0.]], torch.abs, jnp.abs, anp.abs, lambda x: x.abs(),
        mx.abs),
    "abs(x) at NaN": ([[nan]], torch.abs, jnp.abs, anp.abs, lambda x: x.abs(),
        mx.abs),
    "sign(x) at 0": ([[0.]], torch.sign, jnp.sign, anp.sign, lambda x: x.sign(),
        mx.sign),
    "relu(x) at 0": ([[0.]], F.relu, jax.nn.relu, None, lambda x: x.relu(),
        nn.relu),
    "relu(x) at NaN": ([[nan]], F.relu, jax.nn.relu, None, lambda x: x.relu(),
        nn.relu),
    "leaky_relu(x, 0.1) at 0": ([[0.]], lambda x: F.leaky_relu(x, 0.1), lambda x: jax.nn.leaky_relu(x, 0.1), None,
                                lambda x: x.leaky_relu(0.1),
        lambda x: nn.leaky_relu(x, 0.1)),
    "maximum(x, 0) at 0": ([[0.]], lambda x: torch.maximum(x, torch.zeros_like(x)), lambda x: jnp.maximum(x, 0.),
                           lambda x: anp.maximum(x, 0.), lambda x: x.maximum(0.),
        lambda x: mx.maximum(x, 0.)),
    "maximum(a, b) at a = b": ([[1.], [1.]], torch.maximum, jnp.maximum, anp.maximum, lambda a, b: a.maximum(b),
        mx.maximum),
    "max(x) of 1, 1, 0": ([[1., 1., 0.]], torch.max, jnp.max, anp.max, lambda x: x.max(),
        mx.max),
    "max(x, 0) of 1, 1, 0": ([[1., 1., 0.]], lambda x: torch.max(x, 0).values, lambda x: jnp.max(x, axis=0),
                             lambda x: anp.max(x, axis=0), lambda x: x.max(axis=0),
        lambda x: mx.max(x, axis=0)),
    "max_pool1d(x, 3) of 1, 1, 0": ([[[[1., 1., 0.]]]], lambda x: F.max_pool1d(x, 3), None, None,
                                    lambda x: x.unsqueeze(2).max_pool2d((1, 3)),
        lambda x: nn.MaxPool1d(3)(x.reshape(1, 3, 1))),
    "sort(x)[1] of 1, 1": ([[1., 1.]], lambda x: x.sort().values[1], lambda x: jnp.sort(x)[1], lambda x: anp.sort(x)[1],
                           lambda x: x.sort()[0][1],
        lambda x: mx.sort(x)[1]),
    "clamp(x, 0, 1) at 0": ([[0.]], lambda x: x.clamp(0., 1.), lambda x: jnp.clip(x, 0., 1.),
                            lambda x: anp.clip(x, 0., 1.), lambda x: x.clip(0., 1.),
        lambda x: mx.clip(x, 0., 1.)),
    "clamp(x, 0, 1) at 1": ([[1.]], lambda x: x.clamp(0., 1.), lambda x: jnp.clip(x, 0., 1.),
                            lambda x: anp.clip(x, 0., 1.), lambda x: x.clip(0., 1.),
        lambda x: mx.clip(x, 0., 1.)),
    "clamp(x, 0, 1) at NaN": ([[nan]], lambda x: x.clamp(0., 1.), lambda x: jnp.clip(x, 0., 1.),
                              lambda x: anp.clip(x, 0., 1.), lambda x: x.clip(0., 1.),
        lambda x: mx.clip(x, 0., 1.)),
    "clamp by tensors, x = low": ([[0.], [0.], [1.]], lambda x, l, h: x.clamp(l, h), jnp.clip, None,
                                  lambda x, l, h: x.clip(l, h),
        mx.clip),
    "sqrt(x) at 0": ([[0.]], torch.sqrt, jnp.sqrt, anp.sqrt, lambda x: x.sqrt(),
        mx.sqrt),
    "where(x > 0, sqrt(x), 0) at 0": ([[0.]], lambda x: torch.where(x > 0, x.sqrt(), 0.),
                                      lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.),
                                      lambda x: anp.where(x > 0, anp.sqrt(x), 0.), lambda x: (x > 0).where(x.sqrt(), 0.),
        lambda x: mx.where(x > 0, mx.sqrt(x), 0.)),
    "norm(x) at 0, 0": ([[0., 0.]], torch.linalg.vector_norm, jnp.linalg.norm, anp.linalg.norm, None,
        mx.linalg.norm),
    "norm(x, 1) at 0, 1": ([[0., 1.]], lambda x: torch.linalg.vector_norm(x, 1), lambda x: jnp.linalg.norm(x, 1), None,
                           None,
        lambda x: mx.linalg.norm(x, 1)),
    "norm(x, inf) at 1, -1": ([[1., -1.]], lambda x: torch.linalg.vector_norm(x, inf),
                              lambda x: jnp.linalg.norm(x, jnp.inf), None, None,
        lambda x: mx.linalg.norm(x, inf)),
    "std(x) of 1, 1": ([[1., 1.]], torch.std, lambda x: jnp.std(x, ddof=1), lambda x: anp.std(x, ddof=1),
                       lambda x: x.std(),
        lambda x: mx.std(x, ddof=1)),
    "pow(a, b) at 0, 0": ([[0.], [0.]], torch.pow, jnp.power, anp.power, lambda a, b: a.pow(b),
        mx.power),
    "pow(x, 0) at 0": ([[0.]], lambda x: x**0., lambda x: x**0., lambda x: x**0., lambda x: x**0.,
        lambda x: x**0.),
    "prod(x) of 0, 2, 3": ([[0., 2., 3.]], torch.prod, jnp.prod, anp.prod, lambda x: x.prod(),
        mx.prod),
    "cumprod(x) of 0, 2, 3": ([[0., 2., 3.]], lambda x: torch.cumprod(x, 0), jnp.cumprod, None, lambda x: x.cumprod(0),
        lambda x: mx.cumprod(x, 0)),
    "logsumexp(x, -1) of -inf, -inf": ([[-inf, -inf]], lambda x: torch.logsumexp(x, 0), jax.scipy.special.logsumexp,
                                     autograd_logsumexp, lambda x: x.logsumexp(),
        mx.logsumexp),
    "softmax(x)[0] of -inf, -inf": ([[-inf, -inf]], lambda x: torch.softmax(x, 0)[0], lambda x: jax.nn.softmax(x)[0],
                                    None, lambda x: x.softmax()[0],
        lambda x: mx.softmax(x)[0]),
}
HEAD = ["PyTorch 2.15.0", "jax 0.10.2", "autograd 1.9.1", "tinygrad 0.14.0", "MLX 0.32.4"]

page = {}
for line in open(sys.argv[1]):
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if line.startswith("| `") and len(cells) == 2 + len(HEAD): page[cells[0].replace("`", "")] = cells[2:]
changed = 0
for name, (points, *functions) in ROWS.items():
    cells = [seen(run, f, points) for run, f in zip((by_torch, by_jax, by_autograd, by_tinygrad, by_mlx), functions)]
    if sys.argv[2] == "--print":
        print(f"| `{name}` |  | " + " | ".join(cells) + " |")
        continue
    for library, here, there in zip(HEAD, cells, page.pop(name, ["no row"] * len(HEAD))):
        if here != there: changed += 1
        print(f"{'changed' if here != there else 'as seen':8} {library:16} {name:32} {here}"
              + (f" (the page says {there})" if here != there else ""))
for name in page if sys.argv[2] != "--print" else []:
    changed += 1
    print("changed  no function computes the row", name)
sys.exit(changed > 0)
PYTHON
