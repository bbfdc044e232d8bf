// 32K to 2.8M tokens of block-sparse attention: 7 blocks of 128 keys for every query.
#include "examples/headline/attention_work.h"
#include "examples/headline/groups.h"

namespace poolgrad::examples {

Group extreme_sequences() {
  using attention::Pattern;
  Group group{"extreme",
              "Extreme sequences, block-sparse (reports 001 and 002)",
              "The original took one softmax per block and added the results, so that the weights of a row summed to 4 "
              "to 7; its largest row was one call without gradients, at 3.01 GB exactly q, k, v and out. Here: one "
              "softmax over the 896 keys of a row, then more tokens and gradients, within the 8 GiB of that card.",
              {}};
  struct Size {
    std::int64_t tokens;
    Theirs theirs;
  };
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

}  // namespace poolgrad::examples
