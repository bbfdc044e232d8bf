// The tables of the original reports: rows, claims, and the original measurements.
#include <fmt/format.h>

#include <vector>

#include "examples/headline/headline.h"

namespace poolgrad::examples {

using attention::DilatedMode;
using attention::Pattern;

namespace {

/// 1K and 2K tokens: every module on one dense segment, as in the original runs.
Group short_sequences() {
  Group group{"short",
              "1,024 and 2,048 tokens, every module (report 001)",
              "At these lengths the script used one segment without dilation: dense attention for the classes that "
              "attended over tokens (Improved and Ring attended over heads), 7 blocks of 64 keys for block-sparse. f32 "
              "here; the originals ran f32, though the report says f16.",
              {}};
  struct Module {
    const char *id, *label;
    bool multihead, blocks;
    double milliseconds[2], megabytes[2];
  };
  const Module modules[] = {{"dilated", "DilatedAttention", false, false, {.667, 1.086}, {12, 32}},
                            {"multihead-dilated", "multi-head of it", true, false, {1.052, 1.864}, {30, 48}},
                            {"improved", "ImprovedDilatedAttention", false, false, {.522, .828}, {18, 28}},
                            {"multihead-improved", "multi-head of it", true, false, {1.944, 3.14}, {47, 81}},
                            {"ring", "RingDilatedAttention", false, false, {.663, .834}, {18, 28}},
                            {"multihead-ring", "multi-head of it", true, false, {1.96, 3.267}, {44, 74}},
                            {"blocks", "BlockSparseDilatedAttention", false, true, {10.03, 18.65}, {16.8, 24.8}},
                            {"multihead-blocks", "multi-head of it", true, true, {9.88, 17.49}, {29, 45}}};
  for (const int size : {0, 1})
    for (const Module& m : modules) {
      const std::int64_t tokens = size == 0 ? 1024 : 2048;
      group.rows.push_back({fmt::format("{}-{}K", m.id, tokens / 1024),
                            m.label,
                            1,
                            tokens,
                            {m.milliseconds[size], 1e6 * m.megabytes[size]},
                            [=](Bench& bench) {
                              const Pattern pattern = m.blocks ? Pattern::dilated_sparse(64) : Pattern::dense();
                              return run_module(pattern, tokens, m.multihead, bench);
                            }});
    }
  return group;
}

struct Length {
  std::int64_t tokens, batch;
  std::vector<std::int64_t> segments, rates;
  Theirs improved, ring, block_sparse;
};

std::vector<Length> lengths() {
  const std::vector<std::int64_t> three{1, 2, 4}, four{1, 2, 4, 8};
  return {{8192, 8, {2048, 4096, 8192}, three, {574}, {570}, {364}},
          {16384, 8, {2048, 4096, 8192}, three, {1110}, {1440}, {1197}},
          {32768, 4, {2048, 4096, 8192, 32768}, four, {1383}, {1410}, {1200}},
          {65536, 2, {4096, 8192, 16384, 65536}, four, {1332}, {1335}, {1257}},
          {131072, 1, {8192, 16384, 32768, 131072}, four, {1381, 696e6}, {}, {}}};
}

/// A length, and the report's figures for it.
struct Size {
  std::int64_t tokens;
  Theirs theirs;
};

/// 8K to 128K tokens: head groups over dilated branches, and seven blocks per row.
Group long_sequences() {
  Group group{"long",
              "Long sequences, 65K to 131K tokens a call (report 001)",
              "The originals of these rows attended over the heads of one token, not over tokens, and divided by the "
              "number of groups. Here: attention over tokens, each head in one branch (grouped) as there, then every "
              "head in every branch (longnet), and the grouped pattern on a ring of 4 ranks.",
              {}};
  for (const Length& n : lengths()) {
    const std::string size = fmt::format("{}K", n.tokens / 1024);
    const AttentionWork grouped{.batch = n.batch,
                                .tokens = n.tokens,
                                .pattern = Pattern::dilated(n.segments, n.rates, {.mode = DilatedMode::grouped})};
    AttentionWork longnet = grouped, ring = grouped, blocks = grouped;
    longnet.pattern = Pattern::dilated(n.segments, n.rates);
    ring.ring = 4;
    blocks.pattern = Pattern::dilated_sparse(128);
    group.rows.push_back(attention_row("improved-" + size, "dilated, grouped", grouped, n.improved));
    group.rows.push_back(attention_row("longnet-" + size, "dilated, longnet", longnet, {}));
    if (n.ring.milliseconds) group.rows.push_back(attention_row("ring-" + size, "dilated, ring of 4", ring, n.ring));
    if (n.block_sparse.milliseconds)
      group.rows.push_back(attention_row("blocks-" + size, "block-sparse", blocks, n.block_sparse));
  }
  return group;
}

/// 32K to 2.8M tokens of block-sparse attention: 7 blocks of 128 keys for every query.
Group extreme_sequences() {
  Group group{"extreme",
              "Extreme sequences, block-sparse (reports 001 and 002)",
              "The original took one softmax per block and added the results, so that the weights of a row summed to 4 "
              "to 7; its largest row was one call without gradients, at 3.01 GB exactly q, k, v and out. Here: one "
              "softmax over the 896 keys of a row, then more tokens and gradients, within the 8 GiB of that card.",
              {}};
  const Size sizes[] = {{32768, {155.9, 0.165e9}}, {65536, {294.9, 0.322e9}}, {131072, {612, 0.634e9}},
                        {262144, {2139, 1.259e9}}, {524288, {8497, 2.51e9}},  {786432, {15755, 3.0097e9}},
                        {1048576, {{}, {}, true}}};
  const auto add = [&](const std::string& id, const std::string& label, std::int64_t tokens, Work work,
                       const Theirs& theirs) {
    group.rows.push_back(attention_row(
        id, label, {.work = work, .tokens = tokens, .pattern = Pattern::dilated_sparse(128), .budget = "8GiB"},
        theirs));
  };
  for (const Size& size : sizes)
    add("bsr-" + std::to_string(size.tokens), "block-sparse", size.tokens, Work::forward, size.theirs);
  add("bsr-2080000", "block-sparse", 2080000, Work::forward, {});
  add("bsr-2750000-over-query", "block-sparse, out over q", 2750000, Work::forward_over_query, {});
  add("bsr-786432-training", "block-sparse, forward and backward", 786432, Work::training, {});
  add("bsr-1150000-training", "block-sparse, forward and backward", 1150000, Work::training, {});
  return group;
}

/// Segments of a quarter, half and all of the sequence: the table for "2.7 times longer with the pool".
Group branches_of_all() {
  Group group{"fractions",
              "Segments of n/4, n/2 and n (report 000)",
              "\"24,576 without the pool, 65,536 with it\" came from the order of a search in one process; the same "
              "report's own table has 131,072 tokens without the pool. 256K failed on a launch limit, not on memory.",
              {}};
  for (const Size& size : {Size{65536, {1056, 0.59e9}}, Size{131072, {2519, 1.28e9}}}) {
    const std::int64_t n = size.tokens;
    const std::vector<std::int64_t> segments{n / 4, n / 2, n}, rates{1, 2, 4};
    const std::string name = fmt::format("{}K", n / 1024);
    group.rows.push_back(attention_row(
        "fractions-" + name, "dilated, grouped",
        {.tokens = n, .pattern = Pattern::dilated(segments, rates, {.mode = DilatedMode::grouped})}, size.theirs));
    group.rows.push_back(attention_row("fractions-longnet-" + name, "dilated, longnet",
                                       {.tokens = n, .pattern = Pattern::dilated(segments, rates)}, {}));
  }
  return group;
}

/// The reported maximum of "base" was 131,072 tokens and of "ring" 65,536: the same class, at different shapes.
Group block_sparse_limits() {
  Group group{
      "limits",
      "Block-sparse, \"base\" against \"ring\" (report 004)",
      "Both rows ran the same class: \"base\" with 5 blocks of 64 keys at 8 heads of 64, \"ring\" with 7 blocks of 128 "
      "at 4 heads of 32 and gradients on, for any requested sparsity; the 128 MB of \"base\" were its output alone.",
      {}};
  for (const Size& size : {Size{65536, {418}}, Size{131072, {1549, 128.2e6}}})
    group.rows.push_back(attention_row(fmt::format("base-{}K", size.tokens / 1024), "local window, 5 x 64 keys",
                                       {.tokens = size.tokens, .pattern = Pattern::local_window(64, 256)},
                                       size.theirs));
  for (const Size& size :
       {Size{16384, {{}, 0.56e9}}, Size{32768, {{}, 1.13e9}}, Size{65536, {{}, 2.25e9}}, Size{131072, {{}, {}, true}}})
    group.rows.push_back(attention_row(fmt::format("variant-{}K", size.tokens / 1024),
                                       "7 x 128 keys, 4 heads of 32, with gradients",
                                       {.work = Work::training,
                                        .tokens = size.tokens,
                                        .heads = 4,
                                        .head_dim = 32,
                                        .pattern = Pattern::dilated_sparse(128)},
                                       size.theirs));
  return group;
}

Group memory_limits() {
  Group group{"longest",
              "The longest sequence in 8 GiB (reports 000 and 002)",
              "A pool creates no memory: with and without it the same number of tokens fits (theirs: \"65,536 with the "
              "pool, 24,576 without\"). The limit is the bytes that must live at once. Searched in steps of 512 tokens "
              "on a simulated device; no arithmetic is done.",
              {}};
  struct Search {
    const char *id, *label, *options;
    Work work;
    int device;
    Theirs theirs;
  };
  const Search searches[] = {{"longest-pool", "forward, with the pool", "", Work::forward, 1, {}},
                             {"longest-no-pool", "forward, without a pool", "mode:none", Work::forward, 2, {}},
                             {"longest-over-query", "forward, out over q", "", Work::forward_over_query, 1, {}},
                             {"longest-training", "forward and backward", "", Work::training, 1, {}}};
  for (const Search& search : searches) {
    const AttentionWork work{.work = search.work, .pattern = Pattern::dilated_sparse(128)};
    group.rows.push_back({search.id, search.label, 1, 0, search.theirs,
                          [=](Bench& bench) { return longest_sequence(work, search.device, search.options, bench); }});
  }
  return group;
}

Group varying_shapes() {
  return {"shapes",
          "Shapes that vary from call to call (report 003)",
          "\"8.44 ms to 2.43 ms, 3.47 times\" is in no script of the original; its pool never got its outputs back. "
          "Here: five shapes in turn, segments 128, 256 and 512, the same calls with the pool, and with every cached "
          "page released after each call.",
          {{"shapes", "five shapes, with the pool", 0, 0, {2.43}, run_shapes}}};
}

Group billion_tokens() {
  Group group{
      "billion",
      "1,073,741,824 tokens in chunks of 4096 (report 001)",
      "The original timed one random chunk once, cold, and multiplied by 262,144; no keys ever crossed a chunk. With "
      "segments up to 2048, no key needs to. Here: chunk after chunk for --seconds, each generated, attended and "
      "summed; the second configuration has segments of 8192 and 16,384, so four chunks pass their keys around a ring.",
      {}};
  constexpr std::int64_t billion = std::int64_t{1} << 30;
  const auto add = [&](const char* id, const char* label, const StreamedWork& work, const Theirs& theirs) {
    group.rows.push_back({id, label, 1, billion, theirs, [work](Bench& bench) { return stream(work, bench); }});
  };
  StreamedWork work{.tokens = billion, .segment_lengths = {512, 1024, 2048}, .dilation_rates = {1, 2, 4}};
  add("billion-longnet", "segments 512 to 2048, longnet", work, {31.2, 0.03e9});
  work.mode = DilatedMode::grouped;
  add("billion-grouped", "segments 512 to 2048, grouped", work, {31.2, 0.03e9});
  work.mode = DilatedMode::longnet;
  work.ring = 4;
  work.segment_lengths = {4096, 8192, 16384};
  add("billion-ring", "segments 4096 to 16,384, ring of 4", work, {});
  return group;
}

}  // namespace

std::vector<Group> headline_groups() {
  return {short_sequences(),     long_sequences(), extreme_sequences(), branches_of_all(),
          block_sparse_limits(), memory_limits(),  varying_shapes(),    billion_tokens()};
}

}  // namespace poolgrad::examples
