#include "attention/pattern/block_list.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "allocator/error.h"

namespace poolgrad::attention {
namespace {

void check(const std::string& op, std::size_t list, const std::vector<std::int32_t>& row_begin,
           const std::vector<std::int32_t>& columns) {
  const auto refuse = [&](const std::string& reason) {
    throw ValueError("[" + op + "] list " + std::to_string(list) + ": " + reason);
  };
  if (row_begin.empty() || row_begin.front() != 0) refuse("row_begin does not begin with 0");
  for (std::size_t b = 1; b < row_begin.size(); ++b)
    if (row_begin[b] < row_begin[b - 1])
      refuse("row_begin decreases: " + std::to_string(row_begin[b - 1]) + ", " + std::to_string(row_begin[b]) +
             " at row " + std::to_string(b - 1));
  if (static_cast<std::size_t>(row_begin.back()) != columns.size())
    refuse("row_begin ends at " + std::to_string(row_begin.back()) + ", but there are " +
           std::to_string(columns.size()) + " columns");
  for (std::size_t b = 0; b + 1 < row_begin.size(); ++b) {
    std::int32_t before = -1;
    for (auto n = static_cast<std::size_t>(row_begin[b]); n < static_cast<std::size_t>(row_begin[b + 1]); ++n) {
      if (columns[n] <= before)
        refuse("the columns of row " + std::to_string(b) + " must ascend from 0: " + std::to_string(columns[n]) +
               (before < 0 ? "" : " after " + std::to_string(before)));
      before = columns[n];
    }
  }
}

}  // namespace

std::int64_t BlockLists::bytes() const {
  return static_cast<std::int64_t>((row_begin.size() + column_begin.size()) * sizeof(std::int64_t) +
                                   (columns.size() + rows.size()) * sizeof(std::int32_t));
}

BlockLists make_block_lists(const char* op, const std::vector<std::vector<std::int32_t>>& row_begin,
                            const std::vector<std::vector<std::int32_t>>& columns) {
  BlockLists result;
  result.lists = static_cast<std::int32_t>(row_begin.size());
  for (std::size_t l = 0; l < row_begin.size(); ++l) {
    check(op, l, row_begin[l], columns[l]);
    result.block_rows = std::max(result.block_rows, static_cast<std::int32_t>(row_begin[l].size() - 1));
    for (const std::int32_t column : columns[l]) {
      if (column == std::numeric_limits<std::int32_t>::max())
        throw ValueError("[" + std::string(op) + "] column " + std::to_string(column) + " is too large");
      result.block_columns = std::max(result.block_columns, column + 1);
    }
    result.columns.insert(result.columns.end(), columns[l].begin(), columns[l].end());
  }
  result.rows.resize(result.columns.size());
  std::int64_t first = 0;
  std::vector<std::int64_t> next(static_cast<std::size_t>(result.block_columns) + 1);
  for (std::size_t l = 0; l < row_begin.size(); ++l) {
    for (std::size_t b = 0; b <= static_cast<std::size_t>(result.block_rows); ++b)
      result.row_begin.push_back(first + row_begin[l][std::min(b, row_begin[l].size() - 1)]);
    // Columns are counted, and then filled in the order of rows.
    std::fill(next.begin(), next.end(), 0);
    for (const std::int32_t column : columns[l]) ++next[static_cast<std::size_t>(column) + 1];
    next[0] = first;
    for (std::size_t c = 1; c < next.size(); ++c) next[c] += next[c - 1];
    result.column_begin.insert(result.column_begin.end(), next.begin(), next.end());
    for (std::size_t b = 0; b + 1 < row_begin[l].size(); ++b)
      for (auto n = static_cast<std::size_t>(row_begin[l][b]); n < static_cast<std::size_t>(row_begin[l][b + 1]); ++n)
        result.rows[static_cast<std::size_t>(next[static_cast<std::size_t>(columns[l][n])]++)] =
            static_cast<std::int32_t>(b);
    first += static_cast<std::int64_t>(columns[l].size());
  }
  return result;
}

PatternCache& PatternCache::global() {
  static PatternCache cache(std::int64_t{64} << 20);
  return cache;
}

std::shared_ptr<const BlockLists> PatternCache::get(const Key& key, const std::function<BlockLists()>& make) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      ++hits_;
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->lists;
    }
    ++misses_;
  }
  auto lists = std::make_shared<const BlockLists>(make());
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) return found->second->lists;
  const std::int64_t bytes = lists->bytes();
  if (bytes > byte_limit_) return lists;
  entries_.push_front({key, lists, bytes});
  by_key_.emplace(key, entries_.begin());
  bytes_ += bytes;
  evict_beyond_limit();
  return lists;
}

void PatternCache::evict_beyond_limit() {
  while (bytes_ > byte_limit_) {
    bytes_ -= entries_.back().bytes;
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
    ++evictions_;
  }
}

void PatternCache::set_byte_limit(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  byte_limit_ = bytes;
  evict_beyond_limit();
}

void PatternCache::clear() {
  const std::lock_guard lock(mutex_);
  by_key_.clear();
  entries_.clear();
  bytes_ = 0;
}

PatternCache::Statistics PatternCache::statistics() const {
  const std::lock_guard lock(mutex_);
  return {hits_, misses_, evictions_, static_cast<std::int64_t>(entries_.size()), bytes_, byte_limit_};
}

}  // namespace poolgrad::attention
