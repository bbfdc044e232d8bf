#include "kernels/schedule/tiles.h"

#include <algorithm>
#include <numeric>

#include "allocator/caching_allocator.h"
#include "allocator/memory/host_memory.h"
#include "allocator/memory_scope.h"
#include "kernels/schedule/generator.h"

namespace poolgrad::kernels {

std::pmr::memory_resource* program_memory() {
  class Memory final : public std::pmr::memory_resource {
   public:
    Memory() : pool_(std::make_unique<HostMemory>()) {}

   private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
      const MemoryScope scope("attention programs", Category::cache);
      return pool_.allocate(bytes, alignment, Stream{cpu});
    }
    void do_deallocate(void* pointer, std::size_t bytes, std::size_t alignment) override {
      pool_.deallocate(pointer, bytes, alignment, Stream{cpu});
    }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
    CachingAllocator pool_;
  };
  static Memory* const memory = new Memory;  // outlives its entries
  return memory;
}

void RunList::append(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile) {
  expand_tile(schedule, h, tile, [&](const Strip& strip, AttentionRun run) {
    if (run.period > 0) run.table = table_of(strip.log_multiplicity, run.period);
    runs_.push_back(run);
  });
}

void RunList::clear() {
  runs_.clear();
  tables_.clear();
  table_begin_.clear();
}

/// Linear search: a head has one table for every branch and number of branches.
std::int32_t RunList::table_of(const double* entries, int count) {
  for (std::size_t n = 0; n < table_begin_.size(); ++n) {
    const auto begin = tables_.begin() + table_begin_[n];
    const auto end = n + 1 < table_begin_.size() ? tables_.begin() + table_begin_[n + 1] : tables_.end();
    if (std::equal(begin, end, entries, entries + count)) return table_begin_[n];
  }
  table_begin_.push_back(static_cast<std::int32_t>(tables_.size()));
  tables_.insert(tables_.end(), entries, entries + count);
  return table_begin_.back();
}

std::shared_ptr<const WholeProgram> WholeProgram::make(const AttentionSchedule& schedule, const RowTiling& tiling,
                                                       std::size_t most) {
  const std::pmr::polymorphic_allocator<WholeProgram> allocator(program_memory());
  const auto made = std::allocate_shared<WholeProgram>(allocator, Only(), schedule);
  return made->expand(tiling, most) ? made : nullptr;
}

bool WholeProgram::expand(const RowTiling& tiling, std::size_t most) {
  const std::int64_t period = schedule_.head_period(), tiles = tiling.tiles();
  constexpr auto per_tile = static_cast<std::int64_t>(sizeof(AttentionRun));  // most tiles have a run
  if (tiles > static_cast<std::int64_t>(most) / per_tile / period) return false;
  tiles_.reserve(static_cast<std::size_t>(tiles));
  for (std::int64_t n = 0; n < tiles; ++n) tiles_.push_back(tiling.tile(n));
  tile_begin_.reserve(static_cast<std::size_t>(period * tiles) + 1);
  tile_begin_.push_back(0);
  for (std::int64_t h = 0; h < period; ++h)
    for (const Progression& tile : tiles_) {
      list_.append(schedule_, h, tile);
      if (list_.bytes() > most) return false;
      tile_begin_.push_back(static_cast<std::int64_t>(list_.runs().size()));
    }
  sort_by_length();
  own_lists();
  program_ = {.schedule = &schedule_,
              .tiles = tiles,
              .head_period = period,
              .tile = tiles_.data(),
              .tile_begin = tile_begin_.data(),
              .longest_first = longest_first_.data(),
              .level_begin = level_begin_.data(),
              .levels = static_cast<std::int32_t>(level_begin_.size()) - 1,
              .run = list_.runs().data(),
              .log_multiplicity = list_.tables()};
  return bytes() <= most;
}

void WholeProgram::sort_by_length() {
  const auto runs = list_.runs();
  std::pmr::vector<std::int64_t> length(tile_begin_.size() - 1, program_memory());
  for (std::size_t n = 0; n < length.size(); ++n)
    for (std::int64_t r = tile_begin_[n]; r < tile_begin_[n + 1]; ++r)
      length[n] += runs[static_cast<std::size_t>(r)].keys.count;
  longest_first_.resize(length.size());
  std::iota(longest_first_.begin(), longest_first_.end(), 0);
  const auto of = [&](std::int32_t number) { return length[static_cast<std::size_t>(number)]; };
  std::sort(longest_first_.begin(), longest_first_.end(),
            [&](std::int32_t a, std::int32_t b) { return of(a) != of(b) ? of(a) > of(b) : a < b; });
  for (std::size_t n = 0; n < length.size(); ++n)
    if (n == 0 || of(longest_first_[n]) != of(longest_first_[n - 1]))
      level_begin_.push_back(static_cast<std::int32_t>(n));
  level_begin_.push_back(static_cast<std::int32_t>(length.size()));
}

/// Copies lists and documents: their owners may be gone when the program is read.
void WholeProgram::own_lists() {
  const auto runs = list_.runs();
  const auto any = [&](AttentionRun::Flag flag) {
    return std::any_of(runs.begin(), runs.end(), [&](const AttentionRun& run) { return run.has(flag); });
  };
  if (any(AttentionRun::documents))
    documents_.assign(schedule_.documents, schedule_.documents + schedule_.document_count + 1);
  schedule_.documents = documents_.empty() ? nullptr : documents_.data();
  const bool asked = any(AttentionRun::masked);
  const auto own = [&](auto& arrays, const auto*& from, std::int64_t count) {
    from = asked ? arrays.emplace_back(from, from + count).data() : nullptr;
  };
  for (AttentionTerm& term : std::span(schedule_.term, static_cast<std::size_t>(schedule_.term_count))) {
    if (term.kind != AttentionTerm::Kind::listed) continue;
    const std::int64_t blocks = term.listed_blocks();
    if (term.bits != nullptr) {
      own(lists_, term.column_bitmap, blocks);
      own(lists_, term.row_bitmap, blocks);
      own(bits_, term.bits, term.bitmaps * term.size);
    }
    own(lists_, term.columns, blocks);
    own(lists_, term.rows, blocks);
    own(list_begin_, term.column_begin, term.column_begins());
    own(list_begin_, term.row_begin, term.row_begins());
  }
}

std::size_t WholeProgram::bytes() const {
  const auto bytes_of = [](const auto& array) { return array.size() * sizeof(array[0]); };
  std::size_t lists = 0;
  for (const auto& array : list_begin_) lists += bytes_of(array);
  for (const auto& array : lists_) lists += bytes_of(array);
  for (const auto& array : bits_) lists += bytes_of(array);
  return sizeof(WholeProgram) + list_.bytes() + bytes_of(tiles_) + bytes_of(tile_begin_) + bytes_of(longest_first_) +
         bytes_of(level_begin_) + bytes_of(documents_) + lists;
}

namespace {

/// Lists are compared by identity, not by content.
bool has_identity(const AttentionSchedule& schedule) {
  const bool documents = !schedule.documents || schedule.documents_identity != 0;
  return documents && std::all_of(schedule.term, schedule.term + schedule.term_count, [](const AttentionTerm& term) {
           return term.kind != AttentionTerm::Kind::listed || term.lists_identity != 0;
         });
}

bool same(const AttentionSchedule& a, const AttentionSchedule& b) {
  return a.queries == b.queries && a.keys == b.keys && a.heads == b.heads && a.left == b.left && a.right == b.right &&
         a.documents_identity == b.documents_identity && a.document_count == b.document_count &&
         a.flipped == b.flipped && a.modulus == b.modulus && a.cut == b.cut && a.term_count == b.term_count &&
         std::equal(a.term, a.term + a.term_count, b.term);
}

std::uint64_t hash_of(const AttentionSchedule& schedule, std::int64_t limit, bool short_first) {
  std::uint64_t all = static_cast<std::uint64_t>(limit) * 2 + short_first;
  const auto add = [&](auto... values) { ((all = mix(all + static_cast<std::uint64_t>(values))), ...); };
  for (const PositionMap* map : {&schedule.queries, &schedule.keys})
    add(map->count, map->split, map->first, map->second, map->stride);
  add(schedule.heads, schedule.left, schedule.right, schedule.documents_identity, schedule.flipped);
  for (int t = 0; t < schedule.term_count; ++t) {
    const AttentionTerm& term = schedule.term[t];
    add(static_cast<int>(term.kind), term.size, term.left, term.right, term.segment_length[0], term.dilation_rate[0],
        term.run[0].first, term.lists_identity, term.seed);
  }
  return all;
}

}  // namespace

ProgramCache& ProgramCache::global() {
  static ProgramCache* const cache = new ProgramCache(std::size_t{64} << 20);
  return *cache;
}

std::shared_ptr<const WholeProgram> ProgramCache::get(const AttentionSchedule& schedule, std::int64_t limit,
                                                      bool short_first) {
  const auto make = [&]() -> KeptProgram {
    const auto most = static_cast<std::size_t>(statistics().byte_limit) / 4;
    return {schedule, limit, short_first, WholeProgram::make(schedule, RowTiling(schedule, limit, short_first), most)};
  };
  if (!has_identity(schedule)) return make().program;
  const auto is_it = [&](const KeptProgram& kept) {
    return kept.limit == limit && kept.short_first == short_first && same(kept.schedule, schedule);
  };
  return Lru::get(hash_of(schedule, limit, short_first), is_it, make).program;
}

double kept_pairs(const AttentionSchedule& schedule) {
  struct KeptPairs {
    AttentionSchedule schedule;
    double pairs;
    std::size_t bytes() const { return sizeof(KeptPairs); }
  };
  static auto* const cache = new Lru<KeptPairs>(std::size_t{1} << 20, 64, program_memory());
  if (!has_identity(schedule)) return schedule.count_pairs();
  return cache
      ->get(
          hash_of(schedule, 0, false), [&](const KeptPairs& kept) { return same(kept.schedule, schedule); },
          [&] {
            return KeptPairs{schedule, schedule.count_pairs()};
          })
      .pairs;
}

AttentionTiles::AttentionTiles(const AttentionSchedule& schedule, std::int64_t limit, bool short_first)
    : AttentionTiles(schedule, RowTiling(schedule, limit, short_first),
                     ProgramCache::global().get(schedule, limit, short_first)) {}

AttentionTiles AttentionTiles::one_by_one(const AttentionSchedule& schedule, std::int64_t limit, bool short_first) {
  return {schedule, RowTiling(schedule, limit, short_first), nullptr};
}

AttentionTiles::Runs AttentionTiles::Reader::expand(std::int64_t h, std::int64_t n) {
  if (!window_) window_.emplace();
  window_->list.clear();
  window_->list.append(tiles_.schedule_, h, tiles_.tiling_.tile(n));
  window_->program = {
      .schedule = &tiles_.schedule_, .run = window_->list.runs().data(), .log_multiplicity = window_->list.tables()};
  return {window_->program, window_->list.runs()};
}

}  // namespace poolgrad::kernels
