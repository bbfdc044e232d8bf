#include "allocator/memory/stream_capture.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/thread_cache/thread_cache.h"

namespace poolgrad {

namespace {

/// The streams that any thread is recording.
struct Recorded {
  std::atomic<std::size_t> count{0};
  std::mutex mutex;
  std::vector<Stream> streams;
};

Recorded& recorded() {
  static auto* const all = new Recorded;
  return *all;
}

}  // namespace

StreamCapture* StreamCapture::current() noexcept { return thread_state.capture; }

bool StreamCapture::covers(Stream stream) noexcept {
  Recorded& all = recorded();
  if (all.count.load(std::memory_order_acquire) == 0) [[likely]]
    return false;
  const std::lock_guard lock(all.mutex);
  return std::ranges::find(all.streams, stream) != all.streams.end();
}

StreamCapture::StreamCapture(Stream stream, CudaDriver& driver, CachingAllocator& pool)
    : stream_(stream), driver_(driver), pool_(pool) {
  if (current() != nullptr) throw Error("[capture] a step is being recorded in this thread already");
  Recorded& all = recorded();
  {
    const std::lock_guard lock(all.mutex);
    all.streams.push_back(stream);
    ++all.count;
  }
  thread_state.capture = this;
  records_ = true;
  try {
    driver_.begin_capture(stream_.id);
  } catch (...) {
    end();
    throw;
  }
}

StreamCapture::~StreamCapture() {
  if (records_) {
    try {
      driver_.graph_destroy(driver_.end_capture(stream_.id));
    } catch (const Error&) {  // already invalidated
    }
    end();
  }
  kept_.give_back();
}

std::uint64_t StreamCapture::finish() {
  struct Ends {
    StreamCapture& capture;
    ~Ends() { capture.end(); }
  } ends{*this};
  return driver_.end_capture(stream_.id);
}

void StreamCapture::end() noexcept {
  records_ = false;
  thread_state.capture = nullptr;
  Recorded& all = recorded();
  const std::lock_guard lock(all.mutex);
  all.streams.erase(std::ranges::find(all.streams, stream_));
  --all.count;
}

bool StreamCapture::keep(const KeptBlock& block) noexcept {
  if (block.pool == &pool_ || block.stream.device != device()) return false;
  try {
    kept_.blocks.push_back(block);
  } catch (const std::bad_alloc&) {  // leak the block rather than reuse it before the graph is gone
  }
  return true;
}

bool StreamCapture::has_events_of(const DeviceMemory& memory) const {
  const auto* const own = dynamic_cast<const RecordedMemory*>(&pool_.memory());
  return own != nullptr && own->events() == &memory;
}

bool RecordedMemory::commit(void* address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<std::uintptr_t>(address), end = begin + bytes;
  auto next = pieces_.lower_bound(begin);  // an earlier piece may reach into the range
  std::uintptr_t at = begin;
  if (next != pieces_.begin()) at = std::max(at, std::prev(next)->first + std::prev(next)->second);
  while (at < end) {
    const std::uintptr_t stop = next == pieces_.end() ? end : std::min(end, next->first);
    if (at < stop) {
      if (stop - at > limit_ - std::min(limit_, committed_)) return false;
      if (!inner().commit(reinterpret_cast<void*>(at), stop - at)) return false;
      pieces_.emplace(at, stop - at);
      committed_ += stop - at;
    }
    if (next == pieces_.end()) break;
    at = std::max(at, next->first + next->second);
    ++next;
  }
  return true;
}

void RecordedMemory::unreserve(void* address, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto first = pieces_.lower_bound(begin), last = pieces_.lower_bound(begin + bytes);
  for (auto piece = first; piece != last; ++piece) {
    inner().decommit(reinterpret_cast<void*>(piece->first), piece->second);
    committed_ -= piece->second;
  }
  pieces_.erase(first, last);
  MemoryAdaptor::unreserve(address, bytes);
}

void KeptForGraph::give_back() noexcept {
  for (const KeptBlock& block : blocks)
    block.pool->deallocate(block.pointer, block.bytes, block.alignment, block.stream);
  blocks.clear();
  objects.clear();
}

}  // namespace poolgrad
