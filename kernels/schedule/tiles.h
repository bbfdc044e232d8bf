// The tiles of a schedule for one call, each with its runs. They come from a cached program. A program too large for
// the cache is expanded tile by tile instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "allocator/base/lru.h"
#include "kernels/schedule/program.h"

namespace poolgrad::kernels {

/// Memory of cached programs: a separate host pool. Cached programs neither count as tensors nor change the allocations
/// of the devices' pools.
std::pmr::memory_resource* program_memory();

/// Runs of consecutive tiles, and the tables that they refer to.
class RunList {
 public:
  /// Appends the runs that rows of `tile` visit in head h.
  void append(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile);
  void clear();
  std::span<const AttentionRun> runs() const { return runs_; }
  const double* tables() const { return tables_.data(); }
  std::size_t bytes() const { return runs_.size() * sizeof(AttentionRun) + tables_.size() * sizeof(double); }

 private:
  std::int32_t table_of(const double* entries, int count);

  std::pmr::vector<AttentionRun> runs_{program_memory()};
  std::pmr::vector<double> tables_{program_memory()};
  std::pmr::vector<std::int32_t> table_begin_{program_memory()};
};

/// A program with all tiles of a schedule. It owns its arrays.
class WholeProgram {
  struct Only {};

 public:
  /// Returns null if the program would take more than `most` bytes.
  static std::shared_ptr<const WholeProgram> make(const AttentionSchedule& schedule, const RowTiling& tiling,
                                                  std::size_t most);
  WholeProgram(Only, const AttentionSchedule& schedule) : schedule_(schedule) {}
  WholeProgram(const WholeProgram&) = delete;
  WholeProgram& operator=(const WholeProgram&) = delete;

  const AttentionProgram& program() const { return program_; }
  std::size_t bytes() const;

 private:
  bool expand(const RowTiling& tiling, std::size_t most);
  void sort_by_length();
  void own_lists();

  template <class T>
  using Array = std::pmr::vector<T>;
  AttentionSchedule schedule_;
  AttentionProgram program_;
  RunList list_;
  Array<Progression> tiles_{program_memory()};
  Array<std::int64_t> tile_begin_{program_memory()};
  Array<std::int32_t> longest_first_{program_memory()}, level_begin_{program_memory()};
  Array<std::int64_t> documents_{program_memory()};
  Array<Array<std::int64_t>> list_begin_{program_memory()};
  Array<Array<std::int32_t>> lists_{program_memory()};
  Array<Array<std::uint64_t>> bits_{program_memory()};
};

/// A program and its cache key. A null program means that it would be too large.
struct KeptProgram {
  AttentionSchedule schedule;
  std::int64_t limit;
  bool short_first;
  std::shared_ptr<const WholeProgram> program;
  std::size_t bytes() const { return sizeof(KeptProgram) + (program ? program->bytes() : 0); }
};

/// Cache of programs. Keys are the schedule (lists and documents by identity), the tile size and the position of the
/// short tile. A program may take a quarter of the bytes; the cache remembers larger ones as too large.
class ProgramCache : public Lru<KeptProgram> {
 public:
  explicit ProgramCache(std::size_t byte_limit, std::size_t entries = 256)
      : Lru(byte_limit, entries, program_memory()) {}
  static ProgramCache& global();

  /// Returns null for a program that is too large. Rebuilds programs of lists without an identity in every call.
  std::shared_ptr<const WholeProgram> get(const AttentionSchedule& schedule, std::int64_t limit, bool short_first);
};

/// Cached AttentionSchedule::count_pairs(): layers and steps repeat the same schedules. Lists without an identity are
/// counted again each time.
double kept_pairs(const AttentionSchedule& schedule);

class AttentionTiles {
 public:
  /// Tiles as in RowTiling. `schedule` must outlive it.
  AttentionTiles(const AttentionSchedule& schedule, std::int64_t limit, bool short_first = false);
  /// The same without a program, for access to some tiles.
  static AttentionTiles one_by_one(const AttentionSchedule& schedule, std::int64_t limit, bool short_first = false);

  std::int64_t count() const { return tiling_.tiles(); }
  std::int64_t head_period() const { return head_period_; }
  Progression tile(std::int64_t n) const { return whole_ ? whole_->program().tile[n] : tiling_.tile(n); }
  const AttentionSchedule& schedule() const { return schedule_; }
  /// Null if tiles are expanded one by one.
  const AttentionProgram* whole() const { return whole_ ? &whole_->program() : nullptr; }

  struct Runs {
    const AttentionProgram& program;  // program that owns the runs
    std::span<const AttentionRun> runs;
  };
  /// Per-thread reader: it holds a window of one tile if there is no whole program.
  class Reader {
   public:
    explicit Reader(const AttentionTiles& tiles) : tiles_(tiles) {}
    /// Returns the runs of tile n in head h, valid until the next call.
    Runs operator()(std::int64_t h, std::int64_t n) {
      const AttentionProgram* whole = tiles_.whole();
      if (!whole) return expand(h, n);
      const std::int64_t* begin = whole->tile_begin + whole->of(h, n);
      return {*whole, {whole->run + begin[0], whole->run + begin[1]}};
    }

   private:
    Runs expand(std::int64_t h, std::int64_t n);

    const AttentionTiles& tiles_;
    struct Window {
      RunList list;
      AttentionProgram program;
    };
    std::optional<Window> window_;
  };

 private:
  AttentionTiles(const AttentionSchedule& schedule, const RowTiling& tiling, std::shared_ptr<const WholeProgram> whole)
      : schedule_(schedule), tiling_(tiling), head_period_(schedule.head_period()), whole_(std::move(whole)) {}

  const AttentionSchedule& schedule_;
  RowTiling tiling_;
  std::int64_t head_period_;
  std::shared_ptr<const WholeProgram> whole_;
};

}  // namespace poolgrad::kernels
