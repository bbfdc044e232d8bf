// Patterns from a function: blocks with a visible pair, and bitmaps of the blocks that are not full.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>
#include <utility>

#include "allocator/error.h"
#include "attention/pattern/pattern.h"
#include "attention/pattern/terms.h"

namespace poolgrad::attention {

namespace {

constexpr std::int64_t bitmap_size = 64;  // positions of a block: a row is a word
using Bitmap = std::array<std::uint64_t, bitmap_size>;

struct HashOfBitmap {
  std::size_t operator()(const Bitmap& bitmap) const {
    std::uint64_t hash = 0;
    for (const std::uint64_t row : bitmap) hash = kernels::mix(hash ^ row);
    return hash;
  }
};

/// Numbers bitmaps; equal ones share a number.
class Bitmaps {
 public:
  std::int32_t number_of(const Bitmap& bitmap) {
    const auto [at, is_new] = numbers_.try_emplace(bitmap, static_cast<std::int32_t>(numbers_.size()));
    if (is_new) bits_.insert(bits_.end(), bitmap.begin(), bitmap.end());
    return at->second;
  }
  std::vector<std::uint64_t> take() { return std::move(bits_); }

 private:
  std::unordered_map<Bitmap, std::int32_t, HashOfBitmap> numbers_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace

Pattern Pattern::where(std::int64_t length, std::int64_t key_length, std::int64_t heads,
                       const std::function<void(std::int64_t, std::int64_t, std::span<std::uint64_t>)>& marks) {
  for (const std::int64_t of : {length, key_length})
    if (of < 1 || of > std::int64_t{1} << 31)
      throw ValueError(fmt::format("[where] the length must be from 1 to 2^31: {}", of));
  if (heads < 1) throw ValueError(fmt::format("[where] needs at least one head: {}", heads));
  if (!marks) throw ValueError("[where] the function is empty");
  const std::int64_t blocks = kernels::ceil_div(length, bitmap_size);
  const auto words = static_cast<std::size_t>(kernels::ceil_div(key_length, bitmap_size));
  std::vector<BlockList> lists(static_cast<std::size_t>(heads));
  std::vector<std::int32_t> numbers;
  Bitmaps bitmaps;
  std::vector<std::uint64_t> keys;  // of the rows of a block
  for (std::int64_t h = 0; h < heads; ++h) {
    BlockList& list = lists[static_cast<std::size_t>(h)];
    list.row_begin.push_back(0);
    for (std::int64_t first = 0; first < blocks * bitmap_size; first += bitmap_size) {
      const auto rows = static_cast<std::size_t>(std::min(bitmap_size, length - first));
      keys.assign(rows * words, 0);
      for (std::size_t i = 0; i < rows; ++i) {
        const std::span row(keys.data() + i * words, words);
        marks(h, first + static_cast<std::int64_t>(i), row);
        if (const auto rest = static_cast<int>(key_length % bitmap_size); rest > 0)
          row.back() &= (std::uint64_t{1} << rest) - 1;
      }
      for (std::size_t column = 0; column < words; ++column) {
        Bitmap bitmap{};
        for (std::size_t i = 0; i < rows; ++i) bitmap[i] = keys[i * words + column];
        const auto is = [&](std::uint64_t all) {
          return std::all_of(bitmap.begin(), bitmap.end(), [all](std::uint64_t bits) { return bits == all; });
        };
        if (is(0)) continue;
        if (numbers.size() == std::size_t{1} << 30)
          throw ValueError(
              fmt::format("[where] more than 2^30 blocks of {} positions have a visible pair", bitmap_size));
        list.columns.push_back(static_cast<std::int32_t>(column));
        numbers.push_back(is(~std::uint64_t{0}) ? -1 : bitmaps.number_of(bitmap));
      }
      list.row_begin.push_back(static_cast<std::int32_t>(list.columns.size()));
    }
  }
  BlockLists listed = make_block_lists(lists, std::move(numbers));
  listed.bits = bitmaps.take();
  listed.positions = length;
  auto terms = std::make_shared<PatternTerms>();
  PatternTerms::Term& term = terms->terms.emplace_back();
  term.term.kind = TermKind::listed;
  term.term.size = bitmap_size;
  term.lists = std::make_shared<const BlockLists>(std::move(listed));
  return Pattern(std::move(terms));
}

Pattern Pattern::where(std::int64_t length, std::int64_t heads,
                       const std::function<bool(std::int64_t, std::int64_t, std::int64_t)>& sees) {
  if (!sees) throw ValueError("[where] the function is empty");
  return where(length, length, heads, [&](std::int64_t h, std::int64_t i, std::span<std::uint64_t> keys) {
    for (std::int64_t j = 0; j < length; ++j)
      keys[static_cast<std::size_t>(j / bitmap_size)] |= std::uint64_t{sees(h, i, j)} << (j % bitmap_size);
  });
}

Pattern Pattern::where(std::int64_t length, const std::function<bool(std::int64_t, std::int64_t)>& sees) {
  if (!sees) throw ValueError("[where] the function is empty");
  return where(length, 1, [&](std::int64_t, std::int64_t i, std::int64_t j) { return sees(i, j); });
}

}  // namespace poolgrad::attention
