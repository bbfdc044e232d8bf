// Every option of examples/train except --text and --preset. Command lines, checkpoints and reports use these lists.
// Each calls f(name, member, help); Options may be const.
#pragma once

#include <fmt/ranges.h>

#include <functional>
#include <string>

#include "examples/support/train.h"

namespace poolgrad::examples {

/// Returns a function that sets one of for_each_setting() as a command line does. It throws ValueError for a malformed
/// value. `options` must outlive it.
std::function<void(const std::string& name, const std::string& value)> setting_parser(TrainOptions& options);

/// Options that determine the results of a run.
template <class Options, class F>
void for_each_setting(Options& o, F&& f) {
  f("tokenizer", o.tokenizer,
    "Tokens of the model: bytes, or bpe:N, N tokens of one byte or more, learned from the text");
  f("context", o.context, "Length of the context, in tokens");
  f("context-warmup", o.context_warmup,
    "Shorter contexts of the first steps, CONTEXT:STEP up to that step, such as 128:500,256:1000, or none");
  f("layers", o.layers,
    "Number of transformer blocks with --attention, or the attention of each block, such as 5*window:512,causal+nope");
  f("width", o.width, "Width of the model");
  f("heads", o.heads, "Attention heads");
  f("kv-heads", o.kv_heads, "Key and value heads (0: as many as heads)");
  f("feed-forward", o.feed_forward, "Activation of feed-forward layers: gelu (by tanh), gelu_exact or swiglu");
  f("hidden", o.hidden, "Units of feed-forward layers (0: 4 times the width; swiglu: 8/3)");
  f("norm-eps", o.norm_eps, "Epsilon of RMSNorm (0: 1e-6)");
  f("tied-head", o.tied_head, "Use the embedding as the output weight");
  f("logit-softcap", o.logit_softcap, "Bound C of the logits, C tanh(logit / C), such as 30 (0: none)");
  f("attention", o.attention.attention, fmt::format("{}", fmt::join(attention_names(), ", ")));
  for_each_attention_setting(o.attention, f);
  f("batch", o.batch, "Sequences that go through the model at once");
  f("accumulate", o.accumulate,
    "Batches per step, whose gradients add up: as a batch so many times as large, in less memory");
  f("chunk", o.chunk, "Positions of a chunk that goes through all layers, for sequences larger than memory (0: all)");
  f("tile", o.tile, "Positions of a tile of feed-forward layers (0: all)");
  f("steps", o.steps, "Training steps");
  f("lr", o.lr, "Peak learning rate (0: muon 2e-2, adamw and lion 3e-3, sgd 0.1)");
  f("optimizer", o.optimizer, "muon, adamw, sgd or lion");
  f("schedule", o.schedule,
    "Learning rate after a warm-up of 20 steps, or half the steps if that is less: cosine, linear, constant or wsd");
  f("ema", o.ema,
    "Decay of the moving average of the weights, used for validation and samples, such as 0.999 (0: none)");
  f("dropout", o.dropout, "Dropout of embeddings and residual branches");
  f("seed", o.seed, "Seed of the split, the batches and the initial weights");
  f("dtype", o.dtype,
    "Activations: f32, f64, bf16, f16, or auto: bf16 if the CPU multiplies it faster, else f32 (parameters: f64 for "
    "f64, else f32)");
  f("autocast", o.autocast, "Products and attention between f32 activations: none, bf16 or f16");
  f("loss-scale", o.loss_scale, "Initial loss scale of f16, none, or auto: 65536 if anything is f16");
}

/// Options that change no results and also apply to plans and comparisons.
template <class Options, class F>
void for_each_shared_setting(Options& o, F&& f) {
  f("store-every", o.store_every, "Store the state of every N-th chunk, and recompute the states between");
  f("checkpoint", o.checkpoint,
    "Tensors kept for the backward pass, which recomputes the others: none (keeps all), selective (products and "
    "attention), block, sqrt, revolve or revolve:SLOTS (inputs of some blocks), budget (as many as fit), or auto: "
    "budget if there is one; results stay the same");
  f("offload", o.offload, "Folder for saved tensors, instead of recomputing them");
  f("sample", o.sample, "Tokens of text to generate at the end, at most to the end of the context");
}

/// Options of a run only: device, outputs, reports.
template <class Options, class F>
void for_each_run_setting(Options& o, F&& f) {
  f("device", o.device,
    "cpu, cuda:N, auto (a GPU if there is one), or sim:SIZE, a device of that capacity without arithmetic; "
    "sim:SIZE,like=cpu reserves the same bytes as the cpu");
  f("budget", o.budget, "Hard limit of the memory pool, such as 512MiB");
  f("save", o.save, "Checkpoint to write at the end, and when stopped");
  f("save-every", o.save_every, "Steps between checkpoints to --save (0: only at the end)");
  f("resume", o.resume, "Checkpoint to resume, bit for bit; --steps, --lr and --schedule may change");
  f("validate", o.validate, "File or folder to validate on, whole at each line, in place of a part of the text");
  f("init", o.init,
    "Checkpoint, or folder in Hugging Face's format, whose weights a new run starts from, with its model except for "
    "options that are given");
  f("other-text", o.other_text, "Resume a checkpoint that was trained on another text");
  f("stop-after", o.stop_after, "Save and stop after this step (0: never)");
  f("report", o.report, "Steps between printed lines");
  f("json", o.json, "JSON report to write; - for standard output, without any other text");
  f("metrics", o.metrics,
    "File.jsonl or file.csv that grows by a line at each printed one: losses, rate, gradient norm, speed, memory; "
    "--resume continues it");
  f("html", o.html, "HTML page to write at the end: curves, memory, attention, all options");
  f("html-head", o.html_heads,
    "BLOCK:HEAD, such as 1:3, counted from 0: draw a large attention map of this head, or of several, separated by "
    "commas");
  f("live", o.live_page, "Also write the page at every printed line; it reloads itself");
  f("profile", o.profile, "Train a few steps, print the time of their kernels, and exit");
  f("profile-trace", o.profile_trace, "Chrome trace of those steps to write: kernels and memory");
  f("quiet", o.quiet, "Print only errors");
  f("graph", o.graph,
    "On a GPU: record a step and launch it as a whole from then on; same results, faster for small models");
  f("parallel", o.parallel,
    "Split over the ranks of mpirun or srun: ring (each sequence), data (the batch), ring:R,data:D (both), or none");
  f("shard-optimizer", o.shard_optimizer,
    "With --parallel: each rank keeps the optimizer state of only its share of the parameters (ZeRO 1)");
}

}  // namespace poolgrad::examples
