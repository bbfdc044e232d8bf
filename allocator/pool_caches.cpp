#include "allocator/pool.h"

namespace poolgrad {

std::size_t Pool::drain_magazines() { return 0; }

std::size_t Pool::magazine_bytes() const { return 0; }

void Pool::subtract_active(std::size_t bytes) { statistics_.active_bytes.subtract(bytes); }

void Pool::record(const TraceEvent&) {}

void Pool::set_out_of_memory_callback(OutOfMemoryCallback callback) {
  const std::lock_guard lock(mutex_);
  out_of_memory_callback_ = std::move(callback);
}

}  // namespace poolgrad
