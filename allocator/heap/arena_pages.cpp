// Pages of an arena: where to grow and which to release.
#include "allocator/heap/arena.h"

#include <algorithm>

#include "allocator/base/rounding.h"

namespace poolgrad {

Arena::Growth Arena::plan_growth(std::size_t size, std::size_t alignment, std::uint64_t stream,
                                 std::size_t step) const {
  const auto joins = [&](const Block* other) {
    return other != nullptr && other->state == BlockState::free && other->stream == stream;
  };
  // Free neighbors reduce the cost by at most `help`, so smaller holes cannot cost less than `least`.
  const std::size_t help = 2 * largest_free(stream);
  const std::size_t least = size > help ? round_up(size - help, page_) : page_;
  Growth best;
  const auto consider = [&](Block* hole) {
    const std::uintptr_t below = joins(hole->previous) ? hole->previous->address : hole->address;
    const std::uintptr_t above = joins(hole->next) ? hole->next->end() : hole->end();
    if (above - below < size) return;
    const std::uintptr_t start = round_up(below, alignment);
    if (start < below || start >= above || above - start < size) return;
    const std::uintptr_t begin = start < hole->address ? hole->address : round_down(start, page_);
    if (begin >= hole->end() || start + size <= begin) return;  // the free neighbors alone suffice
    // Count steps from the window, whose address differs between devices.
    const std::uintptr_t window = hole->window->address;
    const std::uintptr_t end = std::min(window + round_up(start + size - window, step), hole->end());
    if (best.hole == nullptr || end - begin < best.bytes) best = {hole, begin - hole->address, end - begin};
  };
  holes_.for_each_fit(least, [&](Block* hole) {
    consider(hole);
    return best.bytes != least;
  });
  return best;
}

Block* Arena::begin_growth(const Growth& growth, std::uint64_t stream) {
  store_.reserve(2);
  Block* pages = growth.hole;
  holes_.remove(pages);
  if (growth.offset != 0) {
    Block* below = pages;
    pages = split(below, growth.offset);
    holes_.insert(below);
  }
  if (pages->size > growth.bytes) holes_.insert(split(pages, growth.bytes));
  pages->state = BlockState::busy;
  pages->stream = stream;
  return pages;
}

void Arena::uncommit(Block* block) noexcept {
  block->window->handles.clear(block->address, block->size);
  block->state = BlockState::uncommitted;
  block->stream = 0;
  block->epoch = 0;
  block->ticket = 0;
  if (block->next != nullptr && block->next->state == BlockState::uncommitted) {
    holes_.remove(block->next);
    absorb_next(block);
  }
  if (block->previous != nullptr && block->previous->state == BlockState::uncommitted) {
    block = block->previous;
    holes_.remove(block);
    absorb_next(block);
  }
  holes_.insert(block);
}

void Arena::count_whole_handles(Block* block) const {
  block->whole_bytes = whole_handles(block, block);
  block->whole_handles = {0, 0};
  if (block->whole_bytes == 0) return;
  const HandleMap& handles = block->window->handles;
  const std::uintptr_t begin = handles.round_up(block->address), end = begin + block->whole_bytes;
  for (std::uintptr_t at = begin, next = end; at < end; at = next) {
    if (!divisible_) next = handles.end_of(at);
    ++block->whole_handles.count;
    block->whole_handles.most_pages =
        std::max(block->whole_handles.most_pages, static_cast<std::uint32_t>((next - at) / page_));
  }
}

Block* Arena::take_old_handles(std::uint64_t limit, std::uint64_t& oldest, const Streams& without) {
  Block* old = nullptr;
  std::uintptr_t begin = 0, end = 0;
  const auto look_at = [&](Block* block) {
    if (old != nullptr) return;
    const HandleMap& handles = block->window->handles;
    const PageAges& ages = block->window->ages;
    const std::uintptr_t first = handles.round_up(block->address), last = first + whole_handles(block, block);
    begin = end = first;
    for (std::uintptr_t at = first, next = last; at < last; at = next) {
      next = divisible_ ? std::min(ages.end_of(at), last) : handles.end_of(at);
      const std::uint64_t epoch = std::min(block->epoch, ages.latest(at, next));
      if (epoch < limit) {
        end = next;
        continue;
      }
      oldest = std::min(oldest, epoch);
      if (begin != end) break;
      begin = end = next;
    }
    if (begin != end) old = block;
  };
  for_each_free_page_run(look_at, without);
  return old == nullptr ? nullptr : cut_out(old, begin, end);
}

Block* Arena::cut_out(Block* block, std::uintptr_t begin, std::uintptr_t end) {
  store_.reserve(2);
  remove_free(block);
  block->state = BlockState::busy;
  if (end != block->end()) put(split(block, end - block->address));
  if (begin == block->address) return block;
  Block* cut = split(block, begin - block->address);
  put(block);
  return cut;
}

Block* Arena::take_handles(Block* block, std::size_t bytes) {
  const HandleMap& handles = block->window->handles;
  const std::uintptr_t first = handles.round_up(block->address);
  const std::uintptr_t end = handles.round_down(block->end());
  std::uintptr_t begin = end;
  while (begin > first && end - begin < bytes) begin = handles.start_of(begin - 1);
  return cut_out(block, begin, end);
}

Block* Arena::take_movable_handles(std::size_t bytes, const Block* hole, const Streams& without) {
  struct Run {
    Block* block = nullptr;
    std::uintptr_t begin = 0, end = 0;
    std::size_t calls = 0;  // device calls, one for each handle
    std::size_t size() const { return end - begin; }
    // Ties in the order of HandleIndex go to the first stream.
    bool better_than(const Run& other) const {
      if (other.block == nullptr) return true;
      const std::size_t own = size() * other.calls, others = other.size() * calls;
      if (own != others) return own > others;
      if (block->epoch != other.block->epoch) return block->epoch < other.block->epoch;
      if (block->stream != other.block->stream) return false;
      if (block->size != other.block->size) return block->size < other.block->size;
      return block->address < other.block->address;
    }
  };
  Run best;
  const auto consider = [&](const Run& run) {
    if (run.calls != 0 && run.better_than(best)) best = run;
  };
  const auto is_beside = [&](const Block* block) { return block == hole->previous || block == hole->next; };
  // Takes a part of a block with more than `bytes` in whole handles, else all of it.
  const auto consider_part = [&](Block* block) {
    const HandleMap& handles = block->window->handles;
    const std::uintptr_t begin = handles.round_up(block->address), end = begin + block->whole_bytes;
    if (divisible_) return consider({block, begin, begin + bytes, 1});
    // A call moves at most the largest handle.
    const std::size_t most = std::min(bytes, block->whole_handles.most_pages * page_) * best.calls;
    if (most < best.size() || (best.block != nullptr && most == best.size() && block->epoch > best.block->epoch))
      return;
    Run run{block, begin, begin};
    while (run.end < end) {
      const std::uintptr_t next = handles.end_of(run.end);
      if (next - run.begin <= bytes) {
        run.end = next;
        ++run.calls;
      } else {
        consider(run);
        // A handle that exceeds the run may begin another run.
        run.begin = run.end = run.calls == 0 ? next : run.end;
        run.calls = 0;
      }
    }
    consider(run);
  };
  for (const StreamIndex& entry : indices_) {
    if (contains(without, entry.stream)) continue;
    HandleIndex& by_handles = entry.free->by_handles;
    by_handles.update([&](Block* block) { count_whole_handles(block); });
    by_handles.for_each_best_first([&](Block* block) {
      if (block->whole_bytes > bytes || is_beside(block)) return true;
      const std::uintptr_t begin = block->window->handles.round_up(block->address);
      consider({block, begin, begin + block->whole_bytes, block->whole_handles.count});
      return false;
    });
    entry.free->by_size.for_each_largest_first([&](Block* block) {
      if (block->size <= bytes || block->size < page_) return false;
      if (block->whole_handles.count != 0 && block->whole_bytes > bytes && !is_beside(block)) consider_part(block);
      return true;
    });
  }
  return best.block == nullptr ? nullptr : cut_out(best.block, best.begin, best.end);
}

std::size_t Arena::releasable_bytes(std::size_t enough) const {
  std::size_t bytes = 0;
  if (!several_streams_have_free_blocks()) {
    // The index finds the large ones.
    for (const StreamIndex& entry : indices_) {
      entry.free->by_size.for_each_largest_first([&](const Block* block) {
        bytes += whole_handles(block, block);
        return block->size >= page_ && bytes < enough;
      });
    }
    return bytes;
  }
  for_each_free_run([&](const Block* first, const Block* last) { bytes += whole_handles(first, last); });
  return bytes;
}

std::vector<std::pair<const Block*, std::size_t>> Arena::pinners() const {
  std::vector<std::pair<const Block*, std::size_t>> shares;
  const auto credit = [&](const Block* block, std::size_t bytes) {
    // Visits handles in address order, so a block that spans several was the last one credited.
    if (shares.empty() || shares.back().first != block) shares.emplace_back(block, 0);
    shares.back().second += bytes;
  };
  std::vector<const Block*> holders;  // in the present handle
  for (const auto& window : windows_) {
    const Block* first = window->first;
    for (std::uintptr_t at = window->address; first != nullptr;) {
      if (first->state == BlockState::uncommitted) {
        at = first->end();
        first = first->next;
        continue;
      }
      // Skips all handles that `first` fills: they contain no free bytes.
      const std::uintptr_t end = std::max(window->handles.end_of(at), window->handles.round_down(first->end()));
      std::size_t free = 0;
      holders.clear();
      const Block* block = first;
      for (; block != nullptr && block->address < end; block = block->next) {
        const std::size_t inside = std::min(end, block->end()) - std::max(at, block->address);
        if (block->state == BlockState::free) {
          free += inside;
        } else {
          holders.push_back(block);
        }
        first = block;
      }
      for (const Block* holder : holders) {
        if (free != 0) credit(holder, free / holders.size());
      }
      at = end;
      if (first->end() <= end) first = first->next;
    }
  }
  return shares;
}

}  // namespace poolgrad
