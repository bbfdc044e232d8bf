#!/usr/bin/env python3
"""Writes the numbers that golden_test.cpp compares with: tiny transformers in PyTorch, f64, from their definitions.

Usage: python3 make_golden.py        (needs torch and numpy; writes golden_*.safetensors beside this file)

Two models of 2 layers, width 32, 2 heads, context 16, vocabulary 64:
  modern  RMSNorm, rotary positions, window of 6 keys, 1 key head, SwiGLU, no biases, own head
  classic LayerNorm, learned positions, causal attention, 2 key heads, GELU (tanh), biases, tied head
Each file holds the initial parameters (values that f32 represents exactly), a batch, the gradients of the first step,
and the losses before each of ten AdamW steps (rate 0.01, betas 0.9 and 0.95, epsilon 1e-8, decay 0.1).
"""
import json
import math
import os
import struct

import numpy as np
import torch

C, L, H, T, V, B = 32, 2, 2, 16, 64, 3
D = C // H


def parameters(kind, rng):
    kv_heads = 1 if kind == "modern" else H
    hidden = 88 if kind == "modern" else 4 * C  # 4 * 32 * 2 / 3 rounded up to 8
    p = {}

    def add(name, *shape, mean=0.0, deviation=None):
        deviation = 1 / math.sqrt(shape[-1]) if deviation is None else deviation
        values = (mean + deviation * rng.standard_normal(shape)).astype(np.float32)
        p[name] = torch.tensor(values, dtype=torch.float64, requires_grad=True)

    def norm(name):
        add(name + ".weight", C, mean=1.0, deviation=0.2)
        if kind == "classic":
            add(name + ".bias", C, deviation=0.2)

    def dense(name, rows, columns):
        add(name + ".weight", rows, columns)
        if kind == "classic":
            add(name + ".bias", rows, deviation=0.2)

    add("embedding.weight", V, C, deviation=0.5)
    if kind == "classic":
        add("positions.weight", T, C, deviation=0.5)
    for i in range(L):
        b = f"block{i}."
        norm(b + "norm1")
        dense(b + "mixer.projection", (H + 2 * kv_heads) * D, C)
        dense(b + "mixer.output", C, C)
        norm(b + "norm2")
        dense(b + "feed_forward.up", hidden, C)
        if kind == "modern":
            dense(b + "feed_forward.gate", hidden, C)
        dense(b + "feed_forward.down", C, hidden)
    norm("norm")
    if kind == "modern":
        add("head.weight", V, C)
    return p


def loss_of(kind, p, tokens, targets):
    kv_heads = 1 if kind == "modern" else H

    def norm(name, x):
        if kind == "modern":
            return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * p[name + ".weight"]
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * p[name + ".weight"] + p[name + ".bias"]

    def dense(name, x):
        y = x @ p[name + ".weight"].T
        return y + p[name + ".bias"] if name + ".bias" in p else y

    def rotate(x):  # (B, T, heads, D), pairs (d, d + D / 2)
        t = torch.arange(T, dtype=torch.float64)[:, None]
        angle = t * 10000.0 ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D)[None]
        c, s = torch.cos(angle)[None, :, None], torch.sin(angle)[None, :, None]
        a, b = x[..., : D // 2], x[..., D // 2 :]
        return torch.cat([a * c - b * s, a * s + b * c], -1)

    def attention(name, x):
        heads = dense(name + ".projection", x).reshape(B, T, H + 2 * kv_heads, D)
        q, k, v = heads[:, :, :H], heads[:, :, H : H + kv_heads], heads[:, :, H + kv_heads :]
        if kind == "modern":
            q, k = rotate(q), rotate(k)
        k, v = (t.repeat_interleave(H // kv_heads, 2) for t in (k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(D)
        i, j = torch.arange(T)[:, None], torch.arange(T)[None]
        admitted = (j <= i) & (j >= i - 5) if kind == "modern" else j <= i
        weights = torch.softmax(scores.masked_fill(~admitted, -math.inf), -1)
        return dense(name + ".output", torch.einsum("bhij,bjhd->bihd", weights, v).reshape(B, T, C))

    def feed_forward(name, x):
        up = dense(name + ".up", x)
        if kind == "modern":
            gate = dense(name + ".gate", x)
            return dense(name + ".down", gate * torch.sigmoid(gate) * up)
        gelu = 0.5 * up * (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        return dense(name + ".down", gelu)

    x = p["embedding.weight"][tokens]
    if kind == "classic":
        x = x + p["positions.weight"][None]
    for i in range(L):
        b = f"block{i}."
        x = x + attention(b + "mixer", norm(b + "norm1", x))
        x = x + feed_forward(b + "feed_forward", norm(b + "norm2", x))
    logits = norm("norm", x) @ p["head.weight" if kind == "modern" else "embedding.weight"].T
    return (torch.logsumexp(logits, -1) - logits.gather(-1, targets[..., None])[..., 0]).mean()


def write_safetensors(path, tensors):
    header, offset = {}, 0
    names = {"float32": "F32", "float64": "F64", "int64": "I64"}
    for name, array in tensors.items():
        header[name] = {
            "dtype": names[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())


for seed, kind in enumerate(["modern", "classic"]):
    rng = np.random.default_rng(seed)
    p = parameters(kind, rng)
    batch = rng.integers(0, V, (B, T + 1))
    tokens, targets = torch.tensor(batch[:, :-1]), torch.tensor(batch[:, 1:])
    out = {"parameter." + name: t.detach().numpy().astype(np.float32) for name, t in p.items()}
    out["tokens"], out["targets"] = tokens.numpy().copy(), targets.numpy().copy()
    optimizer = torch.optim.AdamW(p.values(), lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for step in range(10):
        optimizer.zero_grad()
        loss = loss_of(kind, p, tokens, targets)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            out.update({"gradient." + name: t.grad.numpy().copy() for name, t in p.items()})
        optimizer.step()
    out["losses"] = np.array(losses)
    write_safetensors(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"golden_{kind}.safetensors"), out)
    print(kind, sum(t.numel() for t in p.values()), "parameters, losses", losses)
