#!/usr/bin/env bash
# Executes the PyTorch columns of docs/reference/operators.md: results and gradients at NaN, infinities and kinks.
# Prints each entry that PyTorch gives otherwise, and fails if there is one.
set -euo pipefail
. "$(dirname "$0")/python.sh"
python_with torch==2.15.0
"$PYTHON" - "$(dirname "$0")/../docs/reference/operators.md" <<'PYTHON'
import math
import pathlib
import re
import sys

import torch
import torch.nn.functional as F

PIECEWISE = {
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "relu": torch.relu,
    "leaky_relu, slope 1/2": lambda x: F.leaky_relu(x, 0.5),
    "clamp to [-1, 1]": lambda x: torch.clamp(x, -1, 1),
    "maximum": lambda x: torch.maximum(x[0], x[1]),
    "minimum": lambda x: torch.minimum(x[0], x[1]),
    "max of all": torch.max,
    "min of all": torch.min,
    "max along a dimension": lambda x: torch.max(x, 0).values,
    "min along a dimension": lambda x: torch.min(x, 0).values,
    "max_pool1d": lambda x: F.max_pool1d(x[None], x.numel())[0, 0],
    "max_pool2d": lambda x: F.max_pool2d(x[None, None], (1, x.numel()))[0, 0, 0],
    "norm, p = 1": lambda x: torch.linalg.vector_norm(x, 1),
    "norm, p = inf": lambda x: torch.linalg.vector_norm(x, math.inf),
    "norm, any p": lambda x: sum(torch.linalg.vector_norm(x, p) for p in (0.5, 1, 1.5, 2, 3, math.inf)),
    "l1_loss": lambda x: F.l1_loss(x[0], x[1]),
    "huber_loss": lambda x: F.huber_loss(x[0], x[1]),
    "sort": lambda x: torch.sort(x).values,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
}
REDUCTIONS = {
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 0),
    "cumprod": lambda x: torch.cumprod(x, 0),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "prod": torch.prod,
    "norm": torch.linalg.vector_norm,
    "var": torch.var,
    "stddev": torch.std,
}


def numbers(text):
    """"(NaN, 1/2)" or "0" as a list of floats; None for "none"."""
    if text == "none":
        return None
    parts = [part.strip().split("/") for part in text.strip("()").split(",")]
    return [float(part[0]) / float(part[1] if len(part) > 1 else 1) for part in parts]


def same(a, b):
    return a == b or (
        a is not None and b is not None and len(a) == len(b)
        and all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b)))


def run(function, at, weights=None):
    """The result and the gradient of <weights, result>, ones unless given."""
    x = torch.tensor(numbers(at), dtype=torch.float64)
    x = (x if at.startswith("(") else x[0]).requires_grad_()
    y = function(x)
    gradient = None
    if y.requires_grad:
        seed = torch.ones_like(y) if weights is None else torch.tensor(numbers(weights), dtype=y.dtype).reshape(y.shape)
        gradient = torch.autograd.grad(y, x, seed)[0].flatten().tolist()
    return y.detach().flatten().tolist(), gradient


def names_of(cell):
    """"`max`, `min` of all" names "max of all" and "min of all"."""
    rest = re.sub(r"`[^`]*`(, (?=`))?", "", cell)
    separator = "" if rest.startswith(",") or not rest.strip() else " "
    return [name + separator + rest.strip() for name in re.findall(r"`([^`]*)`", cell)]


def main():
    page = pathlib.Path(sys.argv[1])
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in page.read_text().split("## NaN, infinities and kinks")[1].split("\n## ")[0].splitlines()
            if line.startswith("| `")]
    checked = wrong = 0
    for cells in rows:
        piecewise = len(cells) == 6
        for name in names_of(cells[0]):
            if piecewise:
                found = run(PIECEWISE[name], cells[1])
                expected = (numbers(cells[4]), numbers(cells[5]))
            else:
                found = (None, run(REDUCTIONS[name], cells[1], cells[2])[1])
                expected = (None, numbers(cells[4]))
            checked += 1
            if not (same(found[0], expected[0]) and same(found[1], expected[1])):
                wrong += 1
                print(f"{name} at {cells[1]}: the page says {expected}, PyTorch {found}")
    print(f"PyTorch {torch.__version__}: {checked} entries, {wrong} differ from the page")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
PYTHON
