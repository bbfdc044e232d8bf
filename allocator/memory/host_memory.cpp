#include "allocator/memory/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <sstream>
#include <utility>

#include "allocator/base/rounding.h"

namespace poolgrad {

namespace {

/// The page size of the operating system.
std::size_t small_page() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
  return bytes;
}

std::size_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  return pages > 0 ? static_cast<std::size_t>(pages) * small_page() : 0;
}

std::string text_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::size_t available_memory(const ControlGroups& groups) {
  return std::min(physical_memory(), memory_limit_of_groups(text_of(groups.of_process), groups.mounted));
}

// Moves the pages of one mapping and leaves fresh, untouched ones in their place: another mmap() of the program could
// take a hole.
bool move_mapping(std::uintptr_t from, std::uintptr_t to, std::size_t bytes) {
  void* const target = reinterpret_cast<void*>(to);
  constexpr int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  if (mremap(reinterpret_cast<void*>(from), bytes, bytes, flags, target) == MAP_FAILED) {
    // Old kernels unmap the target before the call fails.
    mmap(target, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    return false;
  }
  return true;
}

bool protect(std::uintptr_t begin, std::uintptr_t end, int protection) {
  return mprotect(reinterpret_cast<void*>(begin), end - begin, protection) == 0;
}

}  // namespace

std::size_t memory_limit_of_groups(const std::string& groups, const std::string& mounted) {
  std::size_t least = SIZE_MAX;
  const auto lower = [&](const std::string& file) {
    std::size_t limit = 0;
    std::istringstream text(text_of(file));
    if (text >> limit) least = std::min(least, limit);  // parsing "max" fails: no limit
  };
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    // "4:memory:/job/7" in version 1, "0::/job/7" in version 2, whose folder may be beside those of version 1.
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",memory,") == std::string::npos) continue;
    // Inside a container the path may be the host's; then the mounted root is the group.
    for (std::string path = line.substr(second + 1);; path.resize(path.find_last_of('/'))) {
      if (unified) {
        lower(mounted + path + "/memory.max");
        lower(mounted + "/unified" + path + "/memory.max");
      } else {
        lower(mounted + "/memory" + path + "/memory.limit_in_bytes");
      }
      if (path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

HostMemory::HostMemory(std::size_t total, std::size_t granularity, const ControlGroups& groups)
    : total_(total != 0 ? total : available_memory(groups)), granularity_(granularity) {}

MemoryInfo HostMemory::info() const {
  const std::size_t committed = committed_.load();
  return {.free = total_ - committed, .total = total_};
}

void* HostMemory::reserve(std::size_t bytes) {
  // mmap aligns only to small pages: reserve more and release both ends. One guard page remains behind the range, so
  // that no stretch crosses two ranges.
  const std::size_t granule = std::max(granularity_, large_page());
  if (bytes > SIZE_MAX - granule) return nullptr;
  void* mapped = mmap(nullptr, bytes + granule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = round_up(start, granule);
  if (aligned != start) munmap(mapped, aligned - start);
  if (const std::size_t rest = start + granule - aligned; rest > small_page()) {
    munmap(reinterpret_cast<void*>(aligned + bytes + small_page()), rest - small_page());
  }
  // One page fault per 2 MiB instead of 512. Harmless if the kernel has no huge pages.
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

void HostMemory::unreserve(void* address, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  seams_.erase(seams_.lower_bound(start), seams_.upper_bound(start + bytes));
  stretches_.erase(stretches_.lower_bound(start), stretches_.lower_bound(start + bytes));
  moved_.erase(moved_.lower_bound(start), moved_.lower_bound(start + bytes));
  munmap(address, bytes + small_page());
}

bool HostMemory::commit(void* address, std::size_t bytes) {
  std::size_t committed = committed_.load();
  do {
    if (bytes > total_ - committed) return false;
  } while (!committed_.compare_exchange_weak(committed, committed + bytes));
  try {
    const std::lock_guard lock(mutex_);
    const auto start = reinterpret_cast<std::uintptr_t>(address);
    add_seams(start, bytes);
    Stretches opened{{start, start + bytes}};
    if (protect(start, start + bytes, PROT_READ | PROT_WRITE)) {
      note_open(opened.extract(start));
      return true;
    }
  } catch (...) {
    committed_ -= bytes;
    throw;
  }
  committed_ -= bytes;
  return false;
}

void HostMemory::decommit(void* address, std::size_t bytes) noexcept {
  madvise(address, bytes, MADV_DONTNEED);
  {
    const std::lock_guard lock(mutex_);
    const auto start = reinterpret_cast<std::uintptr_t>(address);
    close(start, start + bytes);
  }
  committed_ -= bytes;
}

void HostMemory::note_open(Stretches::node_type range) noexcept {
  auto other = stretches_.upper_bound(range.mapped());
  while (other != stretches_.begin() && std::prev(other)->second >= range.key()) {
    --other;
    range.key() = std::min(range.key(), other->first);
    range.mapped() = std::max(range.mapped(), other->second);
    other = stretches_.erase(other);
  }
  stretches_.insert(std::move(range));
}

void HostMemory::close(std::uintptr_t begin, std::uintptr_t end) noexcept {
  const auto around = std::prev(stretches_.upper_bound(begin));
  const std::uintptr_t last = around->second;
  if (end != last) {
    if (begin == around->first) {
      auto rest = stretches_.extract(around);
      rest.key() = end;
      stretches_.insert(std::move(rest));
    } else {
      if (stretches_.size() >= most_stretches) return;
      try {
        stretches_.emplace(end, last);
      } catch (const std::bad_alloc&) {
        return;
      }
      around->second = begin;
    }
  } else if (begin == around->first) {
    stretches_.erase(around);
  } else {
    around->second = begin;
  }
  protect(begin, end, PROT_NONE);
}

void HostMemory::add_seams(std::uintptr_t address, std::size_t bytes) {
  seams_.insert(address);
  seams_.insert(address + bytes);
}

bool HostMemory::move(void* from, void* to, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto source = reinterpret_cast<std::uintptr_t>(from);
  const auto target = reinterpret_cast<std::uintptr_t>(to);
  add_seams(source, bytes);
  add_seams(target, bytes);
  const auto first = seams_.find(source);
  const auto last = seams_.find(source + bytes);
  // Allocate first: the steps below must not throw.
  Stretches opened{{target, target + bytes}};
  std::set<std::uintptr_t> moved;
  for (auto seam = first; seam != last; ++seam) moved.insert(target + (*seam - source));
  if (moved_.size() + moved.size() > most_moved) return false;
  for (auto seam = first; seam != last; ++seam) {
    if (move_mapping(*seam, target + (*seam - source), *std::next(seam) - *seam)) continue;
    while (seam != first) {  // roll back on failure
      const std::size_t piece = *seam - *std::prev(seam);
      --seam;
      if (!move_mapping(target + (*seam - source), *seam, piece)) {
        std::fprintf(stderr, "[move] host memory cannot be put back: %zu bytes at %p\n", piece,
                     reinterpret_cast<void*>(*seam));
        std::abort();
      }
      protect(target + (*seam - source), target + (*seam - source) + piece, PROT_NONE);
    }
    return false;
  }
  moved_.erase(moved_.lower_bound(target), moved_.lower_bound(target + bytes));
  moved_.merge(moved);
  note_open(opened.extract(target));
  close(source, source + bytes);
  return true;
}

void HostMemory::fill(void* address, std::size_t bytes, unsigned char value, Stream) {
  std::memset(address, value, bytes);
}

EventId HostMemory::record_event(Stream) { return ++events_; }

}  // namespace poolgrad
