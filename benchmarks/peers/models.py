#!/usr/bin/env python3
"""Compares logits of whole models: poolgrad's checkpoints in PyTorch, and Hugging Face's folders in poolgrad.

usage: cmake --build build/release --target train logits
       python3 benchmarks/peers/models.py build/release

Needs PyTorch, transformers and safetensors; tested with PyTorch 2.15.0 and transformers 5.24. The first part trains small
models, runs the PyTorch program of docs/reference/from-pytorch.md on their checkpoints, and compares its logits. The
second part writes LlamaForCausalLM with random weights in several dtypes, whole and in shards. Exits with the number of
models whose logits differ by more than 1e-5 of the largest one."""
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1])
wrong = 0


def compare(name, model, expected, tokens, folder):
    """Prints the largest difference of poolgrad's logits of `tokens`, relative to the largest logit."""
    global wrong
    output = os.path.join(folder, "logits.safetensors")
    subprocess.run([BUILD / "benchmarks/logits", model, output, *map(str, tokens)], check=True)
    error = (load_file(output)["logits"][0] - expected).abs().max() / expected.abs().max()
    wrong += not error <= 1e-5
    print(f"{name:60} {error:.1e}{'' if error <= 1e-5 else '  wrong'}")


def program():
    """Returns the block of the page that defines logits()."""
    page = (ROOT / "docs/reference/from-pytorch.md").read_text()
    return next(block for block in page.split("```") if "def logits(" in block).strip()


def checkpoints(folder):
    text, checkpoint = os.path.join(folder, "text"), os.path.join(folder, "a.safetensors")
    pathlib.Path(text).write_text("".join(f"int f{i * i % 97}() {{ return {i}; }}\n" for i in range(2000)))
    names = {}
    exec(program(), names)
    tokens = list(b"int f12() { return 7; }\nint f3() {")
    for options in ([], ["--kv-heads", "1"], ["--feed-forward", "swiglu", "--hidden", "72"], ["--feed-forward", "gelu_exact"],
                    ["--tied-head", "--norm-eps", "1e-3"], ["--layers", "2*causal+rope:500"]):
        attention = [] if "--layers" in options else ["--attention", "causal", "--layers", "2"]
        subprocess.run([BUILD / "bin/train", "--text", text, "--save", checkpoint, "--steps", "30", "--width", "64",
                        "--heads", "4", "--context", "128", "--dtype", "f32", "--quiet", *attention, *options], check=True)
        with torch.no_grad():
            expected = names["logits"](checkpoint, torch.tensor(tokens), *[500.0] * ("--layers" in options))
        compare("checkpoint " + " ".join(options), checkpoint, expected, tokens, folder)


def folders(folder):
    tokens = list(b"Once upon a time")
    for name, options in {"": {}, "grouped": {"num_key_value_heads": 2}, "tied": {"tie_word_embeddings": True},
                          "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}}.items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for shard in ("50GB", "40KB"):
                torch.manual_seed(1)
                config = LlamaConfig(vocab_size=300, hidden_size=48, intermediate_size=100, num_hidden_layers=3,
                                     num_attention_heads=4, max_position_embeddings=256, **options)
                model = LlamaForCausalLM(config)
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.add_(0.1 * torch.randn_like(parameter))
                model = model.to(dtype)
                target = tempfile.mkdtemp(dir=folder)
                model.save_pretrained(target, max_shard_size=shard)
                read = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)  # .float() keeps rounded angles
                with torch.no_grad():
                    expected = read(torch.tensor([tokens])).logits[0]
                shards = len(list(pathlib.Path(target).glob("*.safetensors")))
                compare(f"LlamaForCausalLM {name} {dtype} files {shards}", target, expected, tokens, folder)


logging.disable_progress_bar()
with tempfile.TemporaryDirectory() as workplace:
    checkpoints(workplace)
    folders(workplace)
sys.exit(min(wrong, 99))
