// 8K to 128K tokens: head groups over dilated branches, and seven blocks a row.
#include <fmt/format.h>

#include "examples/headline/attention_work.h"
#include "examples/headline/groups.h"

namespace poolgrad::examples {

namespace {

using attention::DilatedMode;
using attention::Pattern;

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

}  // namespace

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

}  // namespace poolgrad::examples
