// The tables of the original reports: rows, claims, and the original measurements.
#include <fmt/format.h>

#include "examples/headline/headline.h"

namespace poolgrad::examples {

using attention::DilatedMode;
using attention::Pattern;

namespace {

constexpr attention::DilatedOptions grouped{.mode = DilatedMode::grouped};

std::string in_k(std::int64_t tokens) { return fmt::format("{}K", tokens / 1024); }

/// A length, and the report's figures for it.
struct Size {
  std::int64_t tokens;
  Theirs theirs;
};

Group short_sequences() {
  Group group{"short", "1,024 and 2,048 tokens, every module (report 001)",
              "At these lengths the script used one segment without dilation: dense attention for the classes that "
              "attended over tokens (Improved and Ring attended over heads), 7 blocks of 64 keys for block-sparse. f32 "
              "here; the originals ran f32, though the report says f16."};
  struct Module {
    const char *id, *label;
    double milliseconds[2], megabytes[2];
  };
  const Module modules[] = {{"dilated", "DilatedAttention", {.667, 1.086}, {12, 32}},
                            {"multihead-dilated", "multi-head of it", {1.052, 1.864}, {30, 48}},
                            {"improved", "ImprovedDilatedAttention", {.522, .828}, {18, 28}},
                            {"multihead-improved", "multi-head of it", {1.944, 3.14}, {47, 81}},
                            {"ring", "RingDilatedAttention", {.663, .834}, {18, 28}},
                            {"multihead-ring", "multi-head of it", {1.96, 3.267}, {44, 74}},
                            {"blocks", "BlockSparseDilatedAttention", {10.03, 18.65}, {16.8, 24.8}},
                            {"multihead-blocks", "multi-head of it", {9.88, 17.49}, {29, 45}}};
  for (const int size : {0, 1})
    for (const Module& m : modules) {
      const std::string id = m.id;
      const std::int64_t tokens = 1024 << size;
      group.rows.push_back({id + "-" + in_k(tokens),
                            m.label,
                            {m.milliseconds[size], 1e6 * m.megabytes[size]},
                            id.ends_with("blocks") ? Pattern::dilated_sparse(64) : Pattern::dense(),
                            tokens,
                            id.starts_with("multihead") ? Work::multihead : Work::module});
    }
  return group;
}

Group long_sequences() {
  Group group{"long", "Long sequences, 65K to 131K tokens a call (report 001)",
              "The originals of these rows attended over the heads of one token, not over tokens, and divided by the "
              "number of groups. Here: attention over tokens, each head in one branch (grouped) as there, then every "
              "head in every branch (longnet), and the grouped pattern on a ring of 4 ranks."};
  struct Length {
    std::int64_t tokens, batch;
    std::vector<std::int64_t> segments;
    Theirs improved, ring, block_sparse;
  };
  const Length lengths[] = {{8192, 8, {2048, 4096, 8192}, {574}, {570}, {364}},
                            {16384, 8, {2048, 4096, 8192}, {1110}, {1440}, {1197}},
                            {32768, 4, {2048, 4096, 8192, 32768}, {1383}, {1410}, {1200}},
                            {65536, 2, {4096, 8192, 16384, 65536}, {1332}, {1335}, {1257}},
                            {131072, 1, {8192, 16384, 32768, 131072}, {1381, 696e6}, {}, {}}};
  for (const Length& n : lengths) {
    std::vector<std::int64_t> rates{1, 2, 4};
    if (n.segments.size() == 4) rates.push_back(8);
    const auto add = [&](const char* id, const char* label, const Pattern& pattern, const Theirs& theirs, int ring) {
      group.rows.push_back({id + in_k(n.tokens), label, theirs, pattern, n.tokens, Work::forward, n.batch});
      group.rows.back().ring = ring;
    };
    add("improved-", "dilated, grouped", Pattern::dilated(n.segments, rates, grouped), n.improved, 1);
    add("longnet-", "dilated, longnet", Pattern::dilated(n.segments, rates), {}, 1);
    if (!n.ring.milliseconds) continue;
    add("ring-", "dilated, ring of 4", Pattern::dilated(n.segments, rates, grouped), n.ring, 4);
    add("blocks-", "block-sparse", Pattern::dilated_sparse(128), n.block_sparse, 1);
  }
  return group;
}

Group extreme_sequences() {
  Group group{"extreme", "Extreme sequences, block-sparse (reports 000, 001 and 002)",
              "The original took one softmax per block and added the results, so that the weights of a row summed to 4 "
              "to 7; its largest row was one call without gradients, at 3.01 GB exactly q, k, v and out. Here: one "
              "softmax over the 896 keys of a row, then more tokens and gradients, within the 8 GiB of that card."};
  const auto add = [&](const std::string& id, const char* label, Work work, const Size& size) {
    group.rows.push_back({"bsr-" + id, label, size.theirs, Pattern::dilated_sparse(128), size.tokens, work});
  };
  for (const Size& size : {Size{32768, {155.9, 0.165e9}}, Size{65536, {294.9, 0.322e9}}, Size{131072, {612, 0.634e9}},
                           Size{262144, {2139, 1.259e9}}, Size{524288, {8497, 2.51e9}}, Size{786432, {15755, 3.0097e9}},
                           Size{1048576, {{}, {}, true}}, Size{2080000, {}}})
    add(std::to_string(size.tokens), "block-sparse", Work::forward, size);
  add("2750000-over-query", "block-sparse, out over q", Work::forward_over_query, {2750000, {}});
  for (const std::int64_t tokens : {786432, 1150000})
    add(std::to_string(tokens) + "-training", "block-sparse, forward and backward", Work::training, {tokens, {}});
  return group;
}

Group branches_of_all() {
  Group group{"fractions", "Segments of n/4, n/2 and n (report 000)",
              "\"24,576 without the pool, 65,536 with it\" came from the order of a search in one process; the same "
              "report's own table has 131,072 tokens without the pool. 256K failed on a launch limit, not on memory."};
  for (const auto& [n, theirs] : {Size{65536, {1056, 0.59e9}}, Size{131072, {2519, 1.28e9}}}) {
    const std::vector<std::int64_t> segments{n / 4, n / 2, n}, rates{1, 2, 4};
    group.rows.push_back(
        {"fractions-" + in_k(n), "dilated, grouped", theirs, Pattern::dilated(segments, rates, grouped), n});
    group.rows.push_back(
        {"fractions-longnet-" + in_k(n), "dilated, longnet", {}, Pattern::dilated(segments, rates), n});
  }
  return group;
}

Group block_sparse_limits() {
  Group group{
      "limits", "Block-sparse, \"base\" against \"ring\" (report 004)",
      "Both rows ran the same class: \"base\" with 5 blocks of 64 keys at 8 heads of 64, \"ring\" with 7 blocks of 128 "
      "at 4 heads of 32 and gradients on, for any requested sparsity; the 128 MB of \"base\" were its output alone."};
  for (const auto& [n, theirs] : {Size{65536, {418}}, Size{131072, {1549, 128.2e6}}})
    group.rows.push_back({"base-" + in_k(n), "local window, 5 x 64 keys", theirs, Pattern::local_window(64, 256), n});
  for (const auto& [n, theirs] :
       {Size{16384, {{}, 0.56e9}}, Size{32768, {{}, 1.13e9}}, Size{65536, {{}, 2.25e9}}, Size{131072, {{}, {}, true}}})
    group.rows.push_back({"variant-" + in_k(n), "7 x 128 keys, 4 heads of 32, with gradients", theirs,
                          Pattern::dilated_sparse(128), n, Work::training, 1, 4, 32});
  return group;
}

Group varying_shapes() {
  const Pattern pattern = Pattern::dilated({128, 256, 512}, {1, 2, 4}, grouped);
  return {"shapes",
          "Five calls of varying shapes (report 003)",
          "\"8.44 ms to 2.43 ms a call, 3.47 times\" is in no script of the original; its pool never got its outputs "
          "back. Here: five shapes in turn, segments 128, 256 and 512, with the pool, and with every cached page "
          "released after each call.",
          {{"shapes-with-pool", "five shapes, with the pool", {5 * 2.43}, pattern, 0, Work::shapes},
           {"shapes-released", "five shapes, memory released", {5 * 8.44}, pattern, 0, Work::shapes_released}}};
}

Group billion_tokens() {
  Group group{
      "billion", "1,073,741,824 tokens in chunks of 4096 (report 001)",
      "The original timed one random chunk once, cold, and multiplied by 262,144; no keys ever crossed a chunk. With "
      "segments up to 2048, no key needs to. Here: chunk after chunk for --seconds, each generated, attended and "
      "summed; the last row has segments of 8192 and 16,384, so four chunks pass their keys around a ring."};
  const auto add = [&](const char* id, const char* label, const Theirs& theirs, const Pattern& pattern, int ring) {
    group.rows.push_back(
        {id, label, theirs, pattern, std::int64_t{1} << 30, Work::stream, 1, 8, 64, ring, 4096 * ring});
  };
  const std::vector<std::int64_t> segments{512, 1024, 2048}, rates{1, 2, 4};
  const Theirs chunk{31.2, 0.03e9};
  add("billion-longnet", "segments 512 to 2048, longnet", chunk, Pattern::dilated(segments, rates), 1);
  add("billion-grouped", "segments 512 to 2048, grouped", chunk, Pattern::dilated(segments, rates, grouped), 1);
  add("billion-ring", "segments 4096 to 16,384, ring of 4", {}, Pattern::dilated({4096, 8192, 16384}, rates), 4);
  return group;
}

}  // namespace

std::vector<Group> headline_groups() {
  return {short_sequences(),     long_sequences(), extreme_sequences(), branches_of_all(),
          block_sparse_limits(), varying_shapes(), billion_tokens()};
}

}  // namespace poolgrad::examples
