#include "allocator/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace poolgrad {

namespace {

std::size_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long bytes = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && bytes > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(bytes) : 0;
}

}  // namespace

HostMemory::HostMemory(std::size_t total, std::size_t granularity)
    : total_(total != 0 ? total : physical_memory()), granularity_(granularity) {}

MemoryInfo HostMemory::info() const {
  const std::size_t committed = committed_.load();
  return {.free = total_ - committed, .total = total_};
}

void* HostMemory::reserve(std::size_t bytes) {
  // mmap aligns to small pages: take more and give back what lies outside the aligned range.
  const std::size_t granule = std::max(granularity_, large_page());
  if (bytes > SIZE_MAX - granule) return nullptr;
  void* mapped = mmap(nullptr, bytes + granule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const std::uintptr_t aligned = (start + granule - 1) & ~(granule - 1);
  if (aligned != start) munmap(mapped, aligned - start);
  if (const std::size_t rest = start + granule - aligned; rest != 0) {
    munmap(reinterpret_cast<void*>(aligned + bytes), rest);
  }
  // One page fault per 2 MiB instead of 512; where the kernel has no huge pages, nothing is lost.
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

void HostMemory::unreserve(void* address, std::size_t bytes) noexcept { munmap(address, bytes); }

bool HostMemory::commit(void* address, std::size_t bytes) {
  std::size_t committed = committed_.load();
  do {
    if (bytes > total_ - committed) return false;
  } while (!committed_.compare_exchange_weak(committed, committed + bytes));
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0) return true;
  committed_ -= bytes;
  return false;
}

void HostMemory::decommit(void* address, std::size_t bytes) noexcept {
  madvise(address, bytes, MADV_DONTNEED);
  mprotect(address, bytes, PROT_NONE);
  committed_ -= bytes;
}

void HostMemory::fill(void* address, std::size_t bytes, unsigned char value, Stream) {
  std::memset(address, value, bytes);
}

EventId HostMemory::record_event(Stream) { return ++events_; }

}  // namespace poolgrad
