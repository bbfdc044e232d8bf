#!/usr/bin/env python3
"""Layers of long context, forward and backward, poolgrad and PyTorch (eager, torch.compile) in turn, in one run.

Usage: python3 benchmarks/peers/layers.py path/to/benchmarks [--repeats 7] [--lengths 4096 16384] [--layers mixed ...]

The folder holds attention_benchmark and step_benchmark. Each row first compares results and gradients in f64 at 512
tokens, and ends the program if they differ by more than 1e-9 of the largest. Then it prints the medians of both in ms,
in f32 on one thread, and PyTorch / poolgrad (above 1: poolgrad is faster): of the medians, and the quartiles over
neighboring pairs. A layer that the program does not know is skipped.

Sizes: heads of 64, 4 at 4,096 tokens and 1 at 16,384. PyTorch's forms: causal attention by
scaled_dot_product_attention; a window by blocks of 128 queries and their 640 keys; block patterns by gathered blocks of
keys; the delta rule by chunks of 64 (arXiv 2406.06484, 2412.06464) with one batched triangular solve; convolutions by
conv1d, and for torch.compile by four shifted products.
"""
import argparse
import os
import statistics
import subprocess
import tempfile
import time

import sdpa
import step

BLOCK, SELECTED, WINDOW, DEPTH = 64, 16, 512, 64
MQAR = {512: (2, 256, 64, 2, 1, 8192), 4096: (8, 512, 64, 2, 1, 8192), 16384: (32, 512, 64, 2, 1, 8192)}
COMPILE_SECONDS = 300


def causal(q, k, v):
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(q, k, v, is_causal=True)


def local(q, k, v, rows=128):
    """Causal attention to WINDOW keys, by blocks of queries."""
    import torch
    from torch.nn.functional import pad, scaled_dot_product_attention

    batch, heads, length, depth = q.shape
    seen = rows + WINDOW
    near = [pad(x, (0, 0, WINDOW, 0)).unfold(2, seen, rows).transpose(-1, -2).flatten(0, 1) for x in (k, v)]
    row, key = torch.arange(length).view(-1, rows, 1), torch.arange(seen).view(1, 1, -1)
    position = row[:, :1] + key - WINDOW
    mask = (position >= 0) & (position <= row) & (position > row - WINDOW)
    out = scaled_dot_product_attention(q.unflatten(2, (-1, rows)).flatten(0, 1), *near, attn_mask=mask)
    return out.view(batch, heads, length, depth)


def mixed(q, k, v):
    for _ in range(5):
        q = local(q, k, v)
    return causal(q, k, v)


def gathered(q, k, v, blocks, mask):
    """Attention of each block of queries to blocks of keys (B, H, blocks, S), with a mask of (BLOCK, S BLOCK) pairs."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    batch, heads, length, depth = q.shape
    count = length // BLOCK
    rows = (blocks + count * torch.arange(batch * heads).view(batch, heads, 1, 1)).flatten()

    def chosen(x):
        return x.reshape(-1, BLOCK * depth).index_select(0, rows).view(batch * heads, count, -1, depth)

    out = scaled_dot_product_attention(q.reshape(batch * heads, count, BLOCK, depth), chosen(k), chosen(v), attn_mask=mask)
    return out.view(batch, heads, length, depth)


def causal_mask(blocks, kept):
    """(B H, blocks, BLOCK, S BLOCK): keys of kept blocks up to the query."""
    import torch

    row = torch.arange(blocks.shape[2] * BLOCK).view(-1, BLOCK, 1)
    key = (blocks.unsqueeze(-1) * BLOCK + torch.arange(BLOCK)).flatten(3).unsqueeze(3)
    return ((key <= row) & kept.repeat_interleave(BLOCK, -1).unsqueeze(3)).flatten(0, 1)


def per_head(q, k, v, known={}):
    """Even heads see the last SELECTED blocks, odd heads every fourth block before."""
    import torch

    if known.get("shape") != q.shape:
        heads, count = q.shape[1], q.shape[2] // BLOCK
        apart = torch.tensor([1, 4])[torch.arange(heads) % 2].view(1, heads, 1, 1)
        blocks = (torch.arange(count).view(-1, 1) - apart * torch.arange(SELECTED)).expand(q.shape[0], -1, -1, -1)
        known.update(shape=q.shape, blocks=blocks.clamp(min=0), mask=causal_mask(blocks.clamp(min=0), blocks >= 0))
    return gathered(q, k, v, known["blocks"], known["mask"])


def selection(q, k, v, query_weight, key_weight, gate_weight, gate_bias):
    """AdaptiveBlockSparseAttention (attention/modules/block_selection.h)."""
    import torch
    from torch.nn.functional import linear, scaled_dot_product_attention

    count = q.shape[2] // BLOCK
    queries = linear(q, query_weight)
    keys, values = linear(k.unflatten(2, (-1, BLOCK)).mean(3), key_weight), v.unflatten(2, (-1, BLOCK)).mean(3)
    own, number = torch.arange(q.shape[2]).view(-1, 1) // BLOCK, torch.arange(count)
    # The first block sees no summary: it gets one, and its result is dropped.
    seen = (number < own) | ((own == 0) & (number == 0))
    coarse = scaled_dot_product_attention(queries, keys, values, attn_mask=seen) * (own > 0)
    with torch.no_grad():
        scores = queries[:, :, ::BLOCK] @ keys.transpose(-1, -2)
        scores = scores.masked_fill(number > number.view(-1, 1), -torch.inf)
        scores = scores.masked_fill(number == number.view(-1, 1), torch.inf)
        best = scores.topk(min(SELECTED, count), -1)
        mask = causal_mask(best.indices, best.values > -torch.inf)
    return gathered(q, k, v, best.indices, mask) + torch.sigmoid(linear(q, gate_weight, gate_bias)) * coarse


def convolution(x, weight):
    from torch.nn.functional import conv1d

    taps = weight.shape[1]
    out = conv1d(x.transpose(1, 2), weight.unsqueeze(1), padding=taps - 1, groups=weight.shape[0])
    return out[..., :x.shape[1]].transpose(1, 2)


def shifted_sums(x, weight):
    """The same convolution. Of both forms, eager mode is faster with conv1d and torch.compile with this one."""
    from torch.nn.functional import pad

    taps = weight.shape[1]
    whole = pad(x, (0, 0, taps - 1, 0))
    return sum(whole[:, i:i + x.shape[1]] * weight[:, i] for i in range(taps))


def delta(*operands):
    return sdpa.delta_rule(*operands, delta=True)


def gla(*operands):
    return sdpa.delta_rule(*operands, delta=False)


def nsa(x, projection, output, gates):
    """NativeSparseAttention (attention/modules/native_sparse.h); the selection of each query by a mask."""
    import torch
    from torch.nn.functional import linear, scaled_dot_product_attention

    heads, length = x.shape[2] // DEPTH, x.shape[1]
    packed = linear(x, projection).unflatten(2, (-1, DEPTH)).transpose(1, 2)
    kv = (packed.shape[1] - heads) // 2
    q, k, v = packed.split([heads, kv, kv], 1)
    gate = torch.sigmoid(linear(x, gates)).unflatten(2, (3, heads)).permute(2, 0, 3, 1).unsqueeze(-1)
    own, number = torch.arange(length).view(-1, 1) // BLOCK, torch.arange(length // BLOCK)
    keys, values = (mean.unflatten(2, (-1, BLOCK)).mean(3).repeat_interleave(heads // kv, 1) for mean in (k, v))
    seen = (number < own) | ((own == 0) & (number == 0))  # the result of the first block is dropped
    scores = (q @ keys.transpose(-1, -2) * DEPTH ** -0.5).masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1)
    compressed = weights @ values * (own > 0)
    with torch.no_grad():
        best = weights.unflatten(1, (kv, -1)).sum(2).masked_fill(number > own, -1).masked_fill(number == own, torch.inf)
        best = best.topk(min(SELECTED, length // BLOCK), -1).indices
        blocks = torch.zeros(1, kv, length, length // BLOCK, dtype=torch.bool).scatter_(-1, best, True)
        mask = (blocks.repeat_interleave(BLOCK, -1) & torch.ones(length, length, dtype=torch.bool).tril())
        mask = mask.repeat_interleave(heads // kv, 1)
    k, v = (y.repeat_interleave(heads // kv, 1) for y in (k, v))
    chosen = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out = gate[0] * compressed + gate[1] * chosen + gate[2] * local(q, k, v)
    return linear(out.transpose(1, 2).flatten(2), output)


COMPILED = {"convolution": shifted_sums}  # in place of the form in LAYERS
LAYERS = {layer.__name__: layer for layer in [mixed, per_head, delta, gla, convolution, selection, nsa]}


def largest_error(found, expected):
    return float((found - expected).detach().abs().max() / expected.detach().abs().max().clamp(min=1e-300))


def sizes(length):
    return list(map(str, (1, length, length, {4096: 4, 16384: 1}.get(length, 2), DEPTH)))


def saved(command):
    """Returns the tensors that the program writes, or None if it does not know the layer."""
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "layer.safetensors")
        run = subprocess.run([word if word != "FILE" else path for word in command], capture_output=True, text=True)
        if "unknown name" in run.stderr:
            return None
        if run.returncode:
            raise SystemExit(run.stderr)
        return load_file(path)


def torch_layout(name, x):
    """(B, T, H, ...) -> (B, H, T, ...), except for operands of the convolution and weights."""
    return x.transpose(1, 2).contiguous() if name in ("q", "k", "v", "beta", "gate") else x


def operands_of(file):
    names = [name for name in file if "d " + name in file]
    order = [name for name in ("q", "k", "v", "beta", "gate", "x", "weight", "selection.query_weight",
                               "selection.key_weight", "gate_weight", "gate_bias", "projection.weight",
                               "output.weight", "gates.weight") if name in names]
    assert sorted(order) == sorted(names), names
    return {name: torch_layout(name, file[name]).clone().requires_grad_() for name in order}


def errors_of_layer(file, layer):
    import torch

    operands = operands_of(file)
    is_plain = "x" in operands
    gradient = file["gradient"] if is_plain else file["gradient"].transpose(1, 2)
    out = layer(*operands.values())
    gradients = torch.autograd.grad(out, operands.values(), gradient)
    errors = [largest_error(file["out"] if is_plain else file["out"].transpose(1, 2), out)]
    for name, found in zip(operands, gradients):
        errors.append(largest_error(torch_layout(name, file["d " + name]), found))
    return errors


def errors_of_step(file, configuration):
    model = step.torch_model(configuration).double()
    names = {"tokens.weight": "embedding.weight"}
    parts = {"qkv": "mixer.projection", "out": "mixer.output", "up": "feed_forward.up", "down": "feed_forward.down"}
    for name, _ in model.named_parameters():
        if name.startswith("blocks."):
            number, part, kind = name.split(".")[1:]
            names[name] = f"block{number}.{parts.get(part, part)}.{kind}"
    ours = {name: names.get(name, name) for name, _ in model.named_parameters()}
    model.load_state_dict({name: file[of] for name, of in ours.items()})
    value = model(file["tokens"], file["targets"], file["asked"])
    value.backward()
    return [largest_error(file["loss"], value.detach())] + [
        largest_error(file["d " + ours[name]], x.grad) for name, x in model.named_parameters()]


def calls_of_layer(name, length):
    """Returns functions of one forward and backward pass: eager and compiled."""
    import torch

    heads = int(sizes(length)[3])
    torch.manual_seed(0)
    width = heads * DEPTH
    if name == "nsa":
        operands = [torch.randn(1, length, width)]
        operands += [torch.randn(rows, width) * width ** -0.5 for rows in (width + 2 * DEPTH, width, 3 * heads)]
    elif name == "convolution":
        operands = [torch.randn(1, length, 3 * heads * DEPTH), torch.randn(3 * heads * DEPTH, 4)]
    else:
        operands = [torch.randn(1, heads, length, DEPTH) for _ in range(3)]
    if name in ("delta", "gla"):
        operands[1] *= 0.125
        operands += [torch.rand(1, heads, length), -0.1 * torch.rand(1, heads, length)]
    if name == "selection":
        operands += [torch.randn(32, DEPTH) / 8, torch.randn(32, DEPTH) / 8, torch.zeros(1, DEPTH), torch.zeros(1)]
    gradient = torch.randn_like(operands[0])
    for x in operands:
        x.requires_grad_()

    def call_of(layer):
        return lambda: torch.autograd.grad(layer(*operands), operands, gradient) and None

    return {"eager": call_of(LAYERS[name]), "compiled": call_of(torch.compile(COMPILED.get(name, LAYERS[name]), dynamic=False))}


def measure(name, length, ours, theirs, repeats):
    """Prints a row. ours() returns milliseconds."""
    failed = {}
    for mode, call in theirs.items():
        try:
            step.warmed_up(call, COMPILE_SECONDS if mode == "compiled" else 0)
        except step.Failed as error:
            failed[mode] = str(error)
    for _ in range(2):
        ours()
    our_times, times = [], {mode: [] for mode in theirs if mode not in failed}
    for _ in range(repeats):
        our_times.append(ours())
        for mode in times:
            begin = time.perf_counter()
            theirs[mode]()
            times[mode].append((time.perf_counter() - begin) * 1e3)
    low, _, high = statistics.quantiles(our_times, n=4) if repeats > 1 else [our_times[0]] * 3
    text = f"{name:11} {length:6} tokens: poolgrad {statistics.median(our_times):8.1f} ms ({low:.1f} to {high:.1f})"
    for mode in theirs:
        text += f"; {mode} " + (failed.get(mode) or step.against(times[mode], {"f32 poolgrad": our_times}))
    print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of attention_benchmark and step_benchmark")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--lengths", type=int, nargs="+", choices=[4096, 16384], default=[4096, 16384])
    parser.add_argument("--layers", nargs="+", choices=[*LAYERS, "mqar"], default=[*LAYERS, "mqar"])
    options = parser.parse_args()

    import torch

    os.environ["OMP_NUM_THREADS"] = os.environ["POOLGRAD_THREADS"] = "1"
    torch.set_num_threads(1)
    attention, steps = (os.path.join(options.folder, f"{name}_benchmark") for name in ("attention", "step"))
    print(f"PyTorch {torch.__version__}, f32, 1 thread, {options.repeats} calls each, in turn")
    for name in options.layers:
        if name == "mqar":
            numbers = list(map(str, MQAR[512]))
            file = saved([steps, "--save", "FILE", *numbers, "f64", "mqar"])
            errors = errors_of_step(file, MQAR[512])
        else:
            size = 2048 if name in ("selection", "mixed", "nsa") else 512
            file = saved([attention, "--save", "FILE", "f64", name, *sizes(size)])
            if file is None:
                print(f"{name}: skipped, attention_benchmark does not know it")
                continue
            errors = errors_of_layer(file, LAYERS[name])
            if name in COMPILED:
                errors += errors_of_layer(file, COMPILED[name])
        print(f"{name}: largest relative difference in f64 {max(errors):.1e}", flush=True)
        if max(errors) > 1e-9:
            raise SystemExit(f"{name}: results or gradients differ: {errors}")
        for length in options.lengths:
            torch.compiler.reset()
            if name == "mqar":
                ours = step.Poolgrad(steps, MQAR[length], "f32, mqar")
                data = mqar_data(steps, MQAR[length])
                theirs = {mode: step.torch_step(MQAR[length], compiled=mode == "compiled", data=data)
                          for mode in ("eager", "compiled")}
                measure(name, length, lambda: ours.step()[0], theirs, options.repeats)
            else:
                ours = sdpa.Poolgrad(attention, "f32", name, "forward_backward", length, int(sizes(length)[3]), 1, "cpu")
                measure(name, length, ours.call, calls_of_layer(name, length), options.repeats)
            ours.close()


def mqar_data(program, configuration):
    file = saved([program, "--save", "FILE", *map(str, configuration), "f32", "mqar"])
    return [file["tokens"], file["targets"], file["asked"]]


if __name__ == "__main__":
    main()
