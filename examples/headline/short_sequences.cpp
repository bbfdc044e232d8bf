// 1K and 2K tokens: every module on one dense segment, as the originals ran there.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "allocator/caching_allocator.h"
#include "attention/modules/block_sparse_attention.h"
#include "attention/modules/dilated_attention.h"
#include "attention/modules/multihead.h"
#include "attention/modules/ring_attention.h"
#include "examples/headline/headline.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::examples {

namespace {

using namespace attention;

constexpr std::int64_t heads = 8, head_dim = 64, width = heads * head_dim;

using MakeCore = std::function<std::unique_ptr<AttentionCore>(std::int64_t tokens)>;

/// A call of a core, or of the multi-head shell around it.
Outcome run(const MakeCore& make, std::int64_t tokens, bool multihead, bool blocks, Bench& bench) {
  const NoGradGuard guard;
  const TensorOptions options{.dtype = DType::f32, .device = bench.device};
  Generator generator(bench.seed);
  CachingAllocator& pool = allocator_for(bench.device);
  pool.trim();
  pool.reset_peaks();
  std::function<Tensor()> call;
  std::shared_ptr<nn::Module> module;
  if (multihead) {
    auto shell =
        std::make_shared<MultiheadShell>(width, heads, make(tokens), MultiheadOptions{},
                                         nn::ParameterOptions{.device = bench.device, .generator = &generator});
    call = [shell, x = uniform({1, tokens, width}, -1, 1, options, generator)] { return shell->forward(x); };
    module = shell;
  } else {
    std::shared_ptr<AttentionCore> core = make(tokens);
    const Shape shape{1, tokens, heads, head_dim};
    const Tensor q = uniform(shape, -1, 1, options, generator), k = uniform(shape, -1, 1, options, generator),
                 v = uniform(shape, -1, 1, options, generator);
    call = [=] { return core->forward(q, k, v); };
    module = core;
  }
  module->eval();
  call();
  std::vector<double> milliseconds;
  for (int i = 0; i < 9; ++i) {
    const Stopwatch watch;
    call();
    milliseconds.push_back(watch.milliseconds());
  }
  Outcome outcome;
  outcome.milliseconds = median(milliseconds);
  outcome.calls = static_cast<int>(milliseconds.size());
  take_peaks(pool, outcome);
  const Pattern pattern = blocks ? Pattern::dilated_sparse(64) : Pattern::dense();
  outcome.operations = operations_of({.tokens = tokens, .pattern = pattern});
  if (multihead) outcome.operations += 8.0 * static_cast<double>(tokens * width * width);
  return outcome;
}

}  // namespace

Group short_sequences() {
  Group group{"short",
              "1,024 and 2,048 tokens, every module (report 001)",
              "At these lengths the script used one segment without dilation: dense attention for the classes that "
              "attended over tokens (Improved and Ring attended over heads), 7 blocks of 64 keys for block-sparse. f32 "
              "here; the originals ran f32, though the report says f16.",
              {}};
  struct Module {
    const char *id, *label;
    MakeCore make;
    bool multihead, blocks;
    double milliseconds[2], megabytes[2];
  };
  const std::vector<std::int64_t> one{1};
  const MakeCore dilated = [=](std::int64_t n) {
    return std::make_unique<DilatedAttention>(std::vector<std::int64_t>{n}, one);
  };
  const MakeCore improved = [=](std::int64_t n) {
    return std::make_unique<ImprovedDilatedAttention>(std::vector<std::int64_t>{n}, one);
  };
  const MakeCore ring = [=](std::int64_t n) {
    return std::make_unique<RingDilatedAttention>(std::vector<std::int64_t>{n}, one);
  };
  const MakeCore blocks = [](std::int64_t) {
    SparsePatternConfig config;
    config.pattern_type = SparsePatternType::dilated_sparse;
    return std::make_unique<BlockSparseDilatedAttention>(config);
  };
  const Module modules[] = {
      {"dilated", "DilatedAttention", dilated, false, false, {.667, 1.086}, {12, 32}},
      {"multihead-dilated", "multi-head of it", dilated, true, false, {1.052, 1.864}, {30, 48}},
      {"improved", "ImprovedDilatedAttention", improved, false, false, {.522, .828}, {18, 28}},
      {"multihead-improved", "multi-head of it", improved, true, false, {1.944, 3.14}, {47, 81}},
      {"ring", "RingDilatedAttention", ring, false, false, {.663, .834}, {18, 28}},
      {"multihead-ring", "multi-head of it", ring, true, false, {1.96, 3.267}, {44, 74}},
      {"blocks", "BlockSparseDilatedAttention", blocks, false, true, {10.03, 18.65}, {16.8, 24.8}},
      {"multihead-blocks", "multi-head of it", blocks, true, true, {9.88, 17.49}, {29, 45}}};
  for (const int size : {0, 1})
    for (const Module& m : modules) {
      const std::int64_t tokens = size == 0 ? 1024 : 2048;
      group.rows.push_back({fmt::format("{}-{}K", m.id, tokens / 1024),
                            m.label,
                            1,
                            tokens,
                            {m.milliseconds[size], 1e6 * m.megabytes[size]},
                            [m, tokens](Bench& bench) { return run(m.make, tokens, m.multihead, m.blocks, bench); }});
    }
  return group;
}

}  // namespace poolgrad::examples
