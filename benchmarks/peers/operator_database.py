#!/usr/bin/env python3
"""Compares poolgrad's operators with PyTorch's operator database: results and gradients of its samples, in every dtype.

usage: cmake --build build/release --target operator_database
       python3 benchmarks/peers/operator_database.py build/release/benchmarks/operator_database [OPERATOR...]

Needs PyTorch and safetensors; tested with PyTorch 2.15.0, whose database is a private module. operator_map.py maps
each of PyTorch's names to the same function written with poolgrad's operators. A sample runs in f64, and with rounded
numbers in f32, f16 and bf16. In f64, results and gradients must agree within 1e-9 of the largest number of each
tensor. In other dtypes, the error against f64 may be four times that of PyTorch in the same dtype, or of one
rounding; in f32 also that of 16 roundings of the largest number. Exits with the number of wrong results, at most 99."""
import collections
import json
import os
import subprocess
import sys
import tempfile
import warnings

import torch
from safetensors.torch import load_file, save_file
from torch.testing._internal.common_methods_invocations import op_db

from operator_map import DTYPES, MAP, RANK, SHAPE, E, Unmapped, encoded, need

warnings.simplefilter("ignore")
ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}

# Operators whose gradients or values differ by a convention of docs/reference/conventions.md or docs/reference/operators.md.
CONVENTIONS = {
    "max/reduction_with_dim": "equals share the gradient", "min/reduction_with_dim": "equals share the gradient",
    "nn.functional.max_pool1d": "equals share the gradient", "nn.functional.max_pool2d": "equals share the gradient",
    "sort": "equals keep their order", "msort": "equals keep their order", "argsort": "equals keep their order",
    "topk": "equals keep their order", "median": "equals keep their order",
    "nn.functional.hardsigmoid": "PyTorch's gradient in f64 has 1/6 in f32 (findings/hardsigmoid_f64.sh)",
    "addcmul": "the product is rounded before the sum",
    "masked.softmax": "a row of -inf is 0", "masked.log_softmax": "a row of -inf is 0", "masked.softmin": "a row of -inf is 0",
    "masked.logsumexp": "a row of -inf has the gradient 0",
}


def leaves(value, found):
    """Returns the value with an expression for each tensor, and adds these to `found`."""
    if isinstance(value, torch.Tensor):
        found.append(value)
        return E({"t": f"{PREFIX[0]}.t{len(found) - 1}"}, value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        parts = [leaves(entry, found) for entry in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, dict): return {key: leaves(entry, found) for key, entry in value.items()}
    return value


PREFIX = [""]
agreed_upon = set()


def rounded(value, dtype, back):
    """Returns the value with its f64 tensors rounded to the dtype, and cast back to f64 on request."""
    if isinstance(value, torch.Tensor):
        if value.dtype != torch.float64: return value
        x = value.detach().to(dtype)
        return (x.double() if back else x).requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(rounded(entry, dtype, back) for entry in value) if type(value) in (list, tuple) else value
    if isinstance(value, dict): return {key: rounded(entry, dtype, back) for key, entry in value.items()}
    return torch.float64 if back and value is dtype else value


def tensors_of(result):
    if isinstance(result, torch.Tensor): return [result]
    if isinstance(result, (bool, int, float)): return [torch.tensor(result)]
    return [tensor for entry in result for tensor in tensors_of(entry)]


def evaluated(op, operands, weights):
    """Returns PyTorch's results and gradients; adds the weights of new floating results to `weights`."""
    value, arguments, options = operands
    results = tensors_of(op(value, *arguments, **options))
    found = []
    leaves([value, arguments, options], found)
    wanted = [x for x in found if x.requires_grad]
    roots = [y for y in results if y.is_floating_point()]
    for y in roots[len(weights):]: weights.append(torch.randn(y.shape, dtype=torch.float64))
    used = [(y, w) for y, w in zip(roots, weights) if y.requires_grad]
    gradients = []
    if wanted and used:
        gradients = torch.autograd.grad([y for y, _ in used], wanted, [w.to(y.dtype) for y, w in used], allow_unused=True)
        gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, gradients)]
    return [y.detach() for y in results], list(gradients), wanted


def disagreement(found, exact, peer, dtype, largest):
    """Returns the fault of one tensor, or None; `largest` is the largest number of the operands."""
    if tuple(found.shape) != tuple(exact.shape): return f"shape {tuple(found.shape)}, not {tuple(exact.shape)}"
    if not exact.is_floating_point(): return None if torch.equal(found.to(exact.dtype), exact) else "other integers"
    found, exact, peer = found.double(), exact.double(), peer.double()
    if dtype == torch.float64 and not torch.equal(found.isfinite(), exact.isfinite()): return f"{found.flatten()[:4].tolist()}, not {exact.flatten()[:4].tolist()}"
    finite = exact.isfinite() & peer.isfinite()
    if not found[finite].isfinite().all(): return "not finite"
    if not finite.any(): return None
    scale = exact[finite].abs().max().item()
    error = (found - exact)[finite].abs().max().item()
    if dtype == torch.float64: return None if error <= 1e-9 * max(scale, 1e-3) else f"off by {error:.3g} of {scale:.3g}"
    allowed = 4 * max((peer - exact)[finite].abs().max().item(), ROUNDOFF[dtype] * max(scale, 1e-3))
    if dtype == torch.float32: allowed = max(allowed, 16 * ROUNDOFF[dtype] * max(scale, largest))
    return None if error <= allowed else f"off by {error:.3g} of {scale:.3g}, PyTorch by {allowed / 4:.3g}"


def main():
    if len(sys.argv) < 2: sys.exit(__doc__)
    program = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    only = set(sys.argv[2:])
    torch.manual_seed(0)
    totals, reasons, wrong_lines = collections.Counter(), collections.Counter(), []
    print(f"PyTorch {torch.__version__}\n{'operator':44} samples  mapped  checks  agree  convention  refused  wrong")
    with tempfile.TemporaryDirectory() as folder:
        for op in op_db:
            name = op.name + (f"/{op.variant_test_name}" if op.variant_test_name else "")
            if only and name not in only or torch.float64 not in op.supported_dtypes("cpu"): continue
            counts = check(program, folder, op, name, reasons, wrong_lines)
            totals.update(counts)
            if counts["mapped"]:
                print(f"{name:44} " + "  ".join(f"{counts[key]:>6}" for key in
                      ("samples", "mapped", "checks", "agree", "convention", "refused", "wrong")), flush=True)
    print("total: " + ", ".join(f"{totals[key]:,} {key}" for key in
          ("operators", "samples", "mapped", "checks", "agree", "convention", "refused", "wrong")))
    print("by convention:", *[f"  {name}: {CONVENTIONS[name]}" for name in sorted(agreed_upon)], sep="\n")
    print("not mapped:", *[f"  {count} {reason}" for reason, count in reasons.most_common(25)], sep="\n")
    print("wrong or refused:", *wrong_lines, sep="\n")
    sys.exit(min(totals["wrong"], 99))


def check(program, folder, op, name, reasons, wrong_lines):
    counts = collections.Counter()
    mapping = MAP.get(name)
    requests, stored, expected, partial = [], {}, {}, set()
    for number, sample in enumerate(op.sample_inputs("cpu", torch.float64, requires_grad=op.supports_autograd)):
        counts["samples"] += 1
        if mapping is None:
            reasons["operators that are not in MAP"] += 1
            continue
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            operands = rounded([sample.input, list(sample.args), sample.kwargs], dtype, False)
            if dtype != torch.float64 and isinstance(operands[2].get("dtype"), torch.dtype): continue
            PREFIX[0] = f"{number}.{DTYPES[dtype]}"
            found = []
            value, arguments, options = leaves(operands, found)
            try:
                need(all(x.dtype in DTYPES for x in found), "dtypes that poolgrad has none of")
                SHAPE[:], RANK[0] = (value.shape, value.ndim) if isinstance(value, E) else ([], 0)
                result = mapping(value, *arguments, **options)
                if isinstance(result, list) and None in result: partial.add(PREFIX[0])
                call = ["tuple", *map(encoded, result)] if isinstance(result, (list, tuple)) else encoded(result)
            except (Unmapped, TypeError, IndexError, AttributeError) as why:
                if dtype == torch.float64: reasons[f"{name}: {why}" if not isinstance(why, Unmapped) else str(why)] += 1
                break
            counts["mapped"] += dtype == torch.float64
            weights = []
            try:
                exact = evaluated(op, rounded([sample.input, list(sample.args), sample.kwargs], dtype, True), weights)
                weights = [w.to(dtype).double() for w in weights]
                exact = evaluated(op, rounded([sample.input, list(sample.args), sample.kwargs], dtype, True), weights)
                peer = evaluated(op, operands, weights)
            except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
                continue  # PyTorch has no kernel for the dtype
            for i, x in enumerate(found): stored[f"{PREFIX[0]}.t{i}"] = x.detach().contiguous().clone()
            for i, w in enumerate(weights): stored[f"{PREFIX[0]}.w{i}"] = w
            wanted = [f"{PREFIX[0]}.t{i}" for i, x in enumerate(found) if x.requires_grad] if exact[1] else []
            requests.append({"id": PREFIX[0], "call": call, "wanted": wanted,
                             "weights": [f"{PREFIX[0]}.w{i}" for i in range(len(weights))]})
            largest = max([x.detach().abs().max().item() for x in found if x.is_floating_point() and x.numel()], default=0.0)
            expected[PREFIX[0]] = (exact, peer, dtype, largest)
    if not requests: return counts
    counts["operators"] = 1
    files = [os.path.join(folder, file) for file in ("inputs.safetensors", "outputs.safetensors")]
    save_file(stored, files[0])
    program.stdin.write(json.dumps({"inputs": files[0], "outputs": files[1], "requests": requests}) + "\n")
    program.stdin.flush()
    refused = json.loads(program.stdout.readline())
    results, seen = load_file(files[1]), set()
    for key, (exact, peer, dtype, largest) in expected.items():
        counts["checks"] += 1
        if key in refused:
            counts["refused"] += 1
            why = refused[key]
        else:
            kind, why = "", None
            for letter, wants, peers in zip("yg", exact[:2], peer[:2]):
                for i, (want, other) in enumerate(zip(wants, peers)):
                    if why is None and (got := results.get(f"{key}.{letter}{i}")) is not None:
                        why = disagreement(got, want, other, dtype, largest)
                    elif why is None and key not in partial: why = "is missing"
                    if why is not None and not kind: kind = f"{'result' if letter == 'y' else 'gradient'} {i}"
            if why is None:
                counts["agree"] += 1
                continue
            if name in CONVENTIONS:
                counts["convention"] += 1
                agreed_upon.add(name)
                continue
            counts["wrong"] += 1
            why = f"{kind}: {why}"
        if (short := why[:60]) not in seen and len(seen) < 4:
            seen.add(short)
            wrong_lines.append(f"  {name} {key}: {why[:200]}")
    return counts


if __name__ == "__main__":
    main()
