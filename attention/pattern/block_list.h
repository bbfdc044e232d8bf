// Listed blocks in both directions: what patterns point kernels to. Made once, never changed.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/definition/attention_term.h"

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

// Block lists that several patterns share. Only what must be listed comes here; patterns that schedules can compute as
// they go are never stored at all.

/// Immutable block lists by what they are made of; the least recently used go first when the bytes of all exceed the
/// limit. Lists that patterns still hold live on after they have left. Any thread may call anything.
class PatternCache {
 public:
  struct Key {
    std::string kind;
    std::vector<std::int64_t> parameters;
    std::int64_t length = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Statistics {
    std::int64_t hits = 0, misses = 0, evictions = 0;
    std::int64_t entries = 0, bytes = 0, byte_limit = 0;
  };

  explicit PatternCache(std::int64_t byte_limit) : byte_limit_(byte_limit) {}
  PatternCache(const PatternCache&) = delete;
  PatternCache& operator=(const PatternCache&) = delete;

  /// The process's own, of 64 MiB.
  static PatternCache& global();

  /// The lists of `key`, from `make` where they are not here. `make` runs without a lock: threads that miss at once all
  /// make them, and share the first. What it throws leaves the cache as it was. Lists above the limit are not kept.
  std::shared_ptr<const BlockLists> get(const Key& key, const std::function<BlockLists()>& make);

  /// Evicts at once what is too much.
  void set_byte_limit(std::int64_t bytes);
  /// Forgets all entries; the counts of hits, misses and evictions stay.
  void clear();
  Statistics statistics() const;

 private:
  struct Entry {
    Key key;
    std::shared_ptr<const BlockLists> lists;
    std::int64_t bytes;
  };
  void evict_beyond_limit();

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::map<Key, std::list<Entry>::iterator> by_key_;
  std::int64_t byte_limit_, bytes_ = 0, hits_ = 0, misses_ = 0, evictions_ = 0;
};

}  // namespace poolgrad::attention
