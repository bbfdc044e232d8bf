#!/usr/bin/env bash
# torch.autograd.gradcheck: fast mode compares one random projection, so it passes a gradient of which one element of
# 1,000 is 0 or doubled. Both modes pass a gradient that is missing where it is 1e-8, and refuse the right one of
# exp(1e8 x), whose step is too wide.
set -euo pipefail
. "$(dirname "$0")/python.sh"
python_with torch==2.15.0
"$PYTHON" - <<'PYTHON'
import sys
import warnings

warnings.simplefilter("ignore")
import torch
from torch.autograd import gradcheck


class Square(torch.autograd.Function):
    """x^2; the gradient of element 17 is multiplied by `factor`."""
    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        found = 2 * ctx.saved_tensors[0] * gradient
        found[17] *= Square.factor
        return found


class Small(torch.autograd.Function):
    """1e-8 x, without a gradient."""

    @staticmethod
    def forward(ctx, x):
        return 1e-8 * x

    @staticmethod
    def backward(ctx, gradient):
        return 0 * gradient


def passes(f, x, **options):
    return gradcheck(f, (x.requires_grad_(),), raise_exception=False, **options)


def normal(seed, n=1000):
    return torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


results = {}
for factor in (0.0, 2.0):
    Square.factor = factor
    results[f"one of 1,000 elements times {factor}, fast mode, 20 seeds"] = (
        sum(passes(Square.apply, normal(seed), fast_mode=True) for seed in range(20)), 20)
    results[f"one of 1,000 elements times {factor}, slow mode"] = passes(Square.apply, normal(0)), False
results["no gradient of 1e-8 x, slow mode"] = passes(Small.apply, normal(0, 4)), True
results["the right gradient of exp(1e8 x), slow mode"] = passes(
    lambda x: torch.exp(1e8 * x), torch.tensor([1e-9, 2e-8], dtype=torch.float64)), False
for name, (found, expected) in results.items(): print(f"{name}: passes {found} ({expected} expected)")
sys.exit(any(found != expected for found, expected in results.values()))
PYTHON
