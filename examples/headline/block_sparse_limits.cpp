// "Base" reached 131,072 tokens and "ring" 65,536: the same class, at different shapes.
#include <fmt/format.h>

#include "examples/headline/attention_work.h"
#include "examples/headline/groups.h"

namespace poolgrad::examples {

Group block_sparse_limits() {
  using attention::Pattern;
  Group group{
      "limits",
      "Block-sparse, \"base\" against \"ring\" (report 004)",
      "Both rows ran the same class: \"base\" with 5 blocks of 64 keys at 8 heads of 64, \"ring\" with 7 blocks "
      "of 128 at 4 heads of 32 and gradients on, whatever sparsity was asked for; the 128 MB of \"base\" were "
      "its output alone.",
      {}};
  struct Size {
    std::int64_t tokens;
    Theirs theirs;
  };
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

}  // namespace poolgrad::examples
