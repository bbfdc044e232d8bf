// Every option of examples/train except --text and --preset. Command lines, checkpoints and reports use these lists.
// Each calls f(name, member, help); Options may be const.
#pragma once

#include <fmt/ranges.h>

#include "examples/support/train.h"

namespace poolgrad::examples {

/// Options that determine the results of a run.
template <class Options, class F>
void for_each_setting(Options& o, F&& f) {
  f("tokenizer", o.tokenizer,
    "What the model reads and writes: bytes, or bpe:N, N tokens of one byte or more that are learned from the text");
  f("context", o.context, "Tokens that the model sees at once");
  f("layers", o.layers,
    "Transformer blocks: a number, of the kind of --attention, or the attention of each, such as "
    "5*window:512,causal+nope");
  f("width", o.width, "Width of the model");
  f("heads", o.heads, "Attention heads");
  f("kv-heads", o.kv_heads, "Key and value heads (0: as many as heads)");
  f("attention", o.attention.attention, fmt::format("{}", fmt::join(attention_names(), ", ")));
  for_each_attention_setting(o.attention, f);
  f("batch", o.batch, "Sequences per step");
  f("chunk", o.chunk, "Positions that go through all layers at once, for sequences longer than memory (0: all)");
  f("tile", o.tile, "Positions that feed-forward layers take at a time (0: all)");
  f("steps", o.steps, "Training steps");
  f("lr", o.lr, "Peak learning rate (0: muon 2e-2, adamw and lion 3e-3, sgd 0.1)");
  f("optimizer", o.optimizer, "muon, adamw, sgd or lion");
  f("schedule", o.schedule,
    "The learning rate after a warm-up of 20 steps, or half the steps where that is less: cosine, linear, constant or "
    "wsd");
  f("ema", o.ema,
    "Decay of the moving average of the weights by which held-out text is judged and text is written, such as 0.999 "
    "(0: none)");
  f("dropout", o.dropout, "Dropout of embeddings and residual branches");
  f("seed", o.seed, "Decides the split, the batches and the initial weights");
  f("dtype", o.dtype,
    "Activations: f32, f64, bf16, f16, or auto: bf16 where the CPU multiplies it faster, else f32 (parameters: f64 for "
    "f64, else f32)");
  f("autocast", o.autocast, "Products and attention between f32 activations: none, bf16 or f16");
  f("loss-scale", o.loss_scale, "Of f16: the scale to begin with, none, or auto: 65536 where anything is f16");
}

/// Options that change no results and also apply to plans and comparisons.
template <class Options, class F>
void for_each_shared_setting(Options& o, F&& f) {
  f("store-every", o.store_every, "Chunks between two that states are kept for; the rest is run again");
  f("checkpoint", o.checkpoint,
    "What is kept for backward, the rest being computed again: none (all is kept), selective (products and "
    "attention), "
    "block, sqrt, revolve or revolve:SLOTS (the inputs of some blocks), budget (what the budget has room for), or "
    "auto: budget where there is one; the numbers stay the same");
  f("offload", o.offload, "Folder to move saved tensors to, rather than to compute them again");
  f("sample", o.sample, "Tokens of text to write at the end, at most up to the end of the context");
}

/// Options of a run only: device, outputs, reports.
template <class Options, class F>
void for_each_run_setting(Options& o, F&& f) {
  f("device", o.device,
    "cpu, cuda:N, auto (a GPU where there is one), or sim:SIZE, a device of that capacity without "
    "arithmetic; sim:SIZE,like=cpu reserves what the cpu does");
  f("budget", o.budget, "Hard limit of the memory pool, such as 512MiB");
  f("save", o.save, "Checkpoint to write at the end, and when stopped");
  f("save-every", o.save_every, "Steps after which the checkpoint of --save is written, too (0: at the end alone)");
  f("resume", o.resume, "Checkpoint to go on from, bit for bit; --steps, --lr and --schedule may differ from its own");
  f("other-text", o.other_text, "Go on from a checkpoint that was trained on another text");
  f("stop-after", o.stop_after, "Save and stop after this step (0: never)");
  f("report", o.report, "Steps between lines");
  f("json", o.json, "Report to write, as JSON; - for standard output, which then has nothing else");
  f("csv", o.csv, "Steps to write, as CSV; - as for --json");
  f("html", o.html, "Page to write at the end: curves, memory, attention, all options");
  f("html-head", o.html_heads,
    "BLOCK:HEAD, such as 1:3, counted from 0: a large map of what this head looks at, also of several, with commas");
  f("live", o.live, "Write the page at every line, too; it reloads itself");
  f("profile", o.profile, "Train a few steps and say what their kernels took; nothing else");
  f("profile-trace", o.profile_trace, "Chrome trace of those steps to write: kernels and memory");
  f("quiet", o.quiet, "Print nothing but errors");
  f("graph", o.graph,
    "On a GPU: record a step and launch it as a whole from then on; the same numbers, faster where a model is small");
  f("parallel", o.parallel,
    "What the ranks that mpirun or srun has started share: ring (every sequence), data (the batch), "
    "ring:R,data:D (both), or none");
  f("shard-optimizer", o.shard_optimizer,
    "With --parallel: each rank has the optimiser's state of its share of the parameters alone (ZeRO 1)");
}

}  // namespace poolgrad::examples
