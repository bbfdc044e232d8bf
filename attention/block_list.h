// Listed blocks in both directions: what patterns point kernels to. Made once, never changed.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention_term.h"

namespace poolgrad::attention {

/// One or more lists over block_rows x block_columns blocks, one after another, as compressed rows and as compressed
/// columns. Row b of list l is columns[row_begin[l * (block_rows + 1) + b] .. row_begin[... + 1]), ascending.
struct BlockLists {
  std::int32_t lists = 0, block_rows = 0, block_columns = 0;
  std::vector<std::int64_t> row_begin, column_begin;
  std::vector<std::int32_t> columns, rows;
  kernels::ListIdentity identity;

  std::int64_t bytes() const;
  friend bool operator==(const BlockLists&, const BlockLists&) = default;
};

/// From compressed rows, one pair of vectors for each list; lists shorter than the longest see nothing in the rows that
/// they lack. Throws ValueError "[op] ..." where row_begin does not begin at 0, decreases or ends elsewhere than at the
/// end of columns, or where the columns of a row are negative or do not ascend.
BlockLists make_block_lists(const char* op, const std::vector<std::vector<std::int32_t>>& row_begin,
                            const std::vector<std::vector<std::int32_t>>& columns);

}  // namespace poolgrad::attention
