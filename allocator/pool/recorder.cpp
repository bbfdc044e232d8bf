#include "allocator/pool/recorder.h"

#include <algorithm>
#include <bit>
#include <new>
#include <source_location>
#include <thread>
#include <unordered_map>

#include "allocator/pool/pool_context.h"
#include "allocator/thread_cache/thread_cache.h"

namespace poolgrad {

static_assert(sizeof(std::source_location) == sizeof(std::uint64_t), "a location must fit into a record");

void Recorder::start(std::size_t events) {
  auto common = std::make_unique<TraceRing>(events);
  kept_.clear();
  blocks_.clear();
  scale_.reset();
  forgotten_until_ = forgotten_ = 0;
  clock_ = TraceClock();
  events_ = events;
  const std::lock_guard lock(mutex_);
  common_ = std::move(common);
}

std::unique_ptr<TraceRing> Recorder::make_ring() const {
  return running() ? std::make_unique<TraceRing>(events_) : nullptr;
}

void Recorder::keep(std::unique_ptr<TraceRing> ring) {
  if (ring == nullptr || ring->size() == 0) return;
  if (kept_.size() == most_rings) {
    // Before the end of this thread, the history would lack its events.
    forgotten_until_ = std::max(forgotten_until_, kept_.front()->events().back().time);
    forgotten_ += kept_.front()->size() + kept_.front()->lost();
    kept_.erase(kept_.begin());
  }
  kept_.push_back(std::move(ring));
}

void Recorder::stop(std::vector<BlockSnapshot> blocks) {
  if (!running()) return;
  events_ = 0;
  scale_ = clock_.scale();
  blocks_ = std::move(blocks);
  const std::lock_guard lock(mutex_);
  keep(std::move(common_));
}

void Recorder::record_in_common(const TraceEvent& event) {
  const std::lock_guard lock(mutex_);
  if (common_ != nullptr) common_->record(event);
}

void Recorder::record(TraceEvent event) {
  event.time = trace_ticks();
  ThreadCache* own = settings_.own_cache();
  if (own == nullptr) return record_in_common(event);
  // Fails only while another thread holds the mutex (this thread does not), which is brief.
  while (!own->flag.enter()) std::this_thread::yield();
  if (own->ring != nullptr) own->ring->record(event);
  own->flag.leave();
}

void Recorder::record_block(TraceKind kind, const Block& block, Stamp now, std::source_location location,
                            std::uint8_t flags) {
  if (!running()) return;
  const TraceEvent event{.time = trace_ticks(),
                         .allocation = block.number,
                         .address = block.address,
                         .size = block.requested,
                         .ticket = now.ticket,
                         .location = std::bit_cast<std::uint64_t>(location),
                         .scope = block.tag.scope,
                         .stream = stream_index(now.stream),
                         .slack = static_cast<std::uint32_t>(block.size - block.requested),
                         .kind = kind,
                         .category = block.tag.category,
                         .flags = flags};
  ThreadCache* own = settings_.own_cache();
  if (own != nullptr && own->ring != nullptr) {
    own->ring->record(event);
  } else {
    record_in_common(event);
  }
}

std::uint32_t Recorder::stream_index(std::uint64_t stream) noexcept {
  const std::lock_guard lock(mutex_);
  if (common_ == nullptr) return UINT32_MAX;
  const auto known = std::ranges::find(streams_, stream);
  const auto index = static_cast<std::uint32_t>(known - streams_.begin());
  if (known != streams_.end()) return index;
  try {
    streams_.push_back(stream);
  } catch (const std::bad_alloc&) {
    return UINT32_MAX;  // shown as the default stream
  }
  return index;
}

namespace {

/// Replaces keys by their order of first appearance.
template <class Value>
class Interned {
 public:
  explicit Interned(std::vector<Value>& values) : values_(values) {}

  template <class Make>
  std::uint64_t operator()(std::uint64_t key, Make make) {
    const auto [entry, added] = indices_.try_emplace(key, values_.size());
    if (added) values_.push_back(make(key));
    return entry->second;
  }

 private:
  std::vector<Value>& values_;
  std::unordered_map<std::uint64_t, std::uint64_t> indices_;
};

TraceLocation location_of(std::uint64_t bits) {
  if (bits == 0) return {};
  const auto location = std::bit_cast<std::source_location>(bits);
  return {location.file_name(), location.function_name(), location.line()};
}

}  // namespace

Trace Recorder::collect(std::vector<const TraceRing*> running, std::vector<BlockSnapshot> blocks) const {
  Trace trace;
  trace.start_us = clock_.start_us();
  trace.blocks = this->running() ? std::move(blocks) : blocks_;
  const TraceClock::Scale scale = scale_ ? *scale_ : clock_.scale();

  const std::lock_guard lock(mutex_);
  if (common_ != nullptr) running.push_back(common_.get());
  for (const auto& ring : kept_) running.push_back(ring.get());
  MergedEvents merged = merge_rings(running);
  trace.lost = merged.lost + forgotten_;

  Interned streams(trace.streams);
  Interned scopes(trace.scopes);
  Interned locations(trace.locations);
  const auto name_scope = [](std::uint64_t id) { return scope_name(static_cast<std::uint32_t>(id)); };
  const auto stream_of = [this](std::uint64_t index) { return index < streams_.size() ? streams_[index] : 0; };
  scopes(0, name_scope);
  locations(0, location_of);
  trace.events.reserve(merged.events.size() * 3 / 2);
  for (TraceEvent& event : merged.events) {
    if (event.time <= forgotten_until_) {
      ++trace.lost;
      continue;
    }
    event.time = scale(event.time);
    if (names_stream(event.kind)) event.stream = static_cast<std::uint32_t>(streams(event.stream, stream_of));
    if (event.kind == TraceKind::stream_order) event.address = streams(event.address, stream_of);
    event.scope = static_cast<std::uint32_t>(scopes(event.scope, name_scope));
    event.location = locations(event.location, location_of);
    const bool completed = (event.flags & completed_at_once) != 0;
    event.flags &= static_cast<std::uint8_t>(~completed_at_once);
    trace.events.push_back(event);
    if (!completed) continue;
    event.kind = TraceKind::free_completed;
    trace.events.push_back(event);
  }
  if (trace.streams.empty()) trace.streams.push_back(0);  // for events without a stream
  for (BlockSnapshot& block : trace.blocks)
    block.tag.scope = static_cast<std::uint32_t>(scopes(block.tag.scope, name_scope));
  return trace;
}

}  // namespace poolgrad
