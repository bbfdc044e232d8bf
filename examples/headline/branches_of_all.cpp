// Segments of a quarter, half and all of the sequence: the table behind "2.7 times longer with the pool".
#include <fmt/format.h>

#include "examples/headline/attention_work.h"
#include "examples/headline/groups.h"

namespace poolgrad::examples {

Group branches_of_all() {
  using attention::DilatedMode;
  using attention::Pattern;
  Group group{"fractions",
              "Segments of n/4, n/2 and n (report 000)",
              "\"24,576 without the pool, 65,536 with it\" came from the order of a search in one process; the same "
              "report's own table has 131,072 tokens without the pool. 256K failed on a launch limit, not on memory.",
              {}};
  struct Size {
    std::int64_t tokens;
    Theirs theirs;
  };
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

}  // namespace poolgrad::examples
