// An adaptor between a pool and its device that records the committed addresses. It keeps the first violation as a
// sentence: memory committed twice or beyond the budget, released while in use, a torn handle, a lost event.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "allocator/memory/memory_adaptor.h"
#include "allocator/thread_cache/thread_cache.h"
#include "tests/allocator/fuzz/stream_clocks.h"

namespace poolgrad::testing {

class WatchingMemory : public MemoryAdaptor {
 public:
  using MemoryAdaptor::MemoryAdaptor;
  ~WatchingMemory() override { at_end(*this); }

  /// Called after the pool has released the device.
  std::function<void(const WatchingMemory&)> at_end = [](const WatchingMemory&) {};
  /// Called before an address range loses its memory; returns an error, or "".
  std::function<std::string(std::uintptr_t, std::size_t)> before_release = [](std::uintptr_t, std::size_t) {
    return std::string();
  };
  /// Sets the most bytes that may be committed at one time.
  void set_limit(std::size_t bytes) { limit_ = bytes; }
  /// The first violation, or "" if there is none.
  const std::string& violation() const { return violation_; }
  std::size_t committed() const { return committed_; }
  std::size_t most_committed() const { return most_committed_; }
  std::size_t open_events() const { return clocks_.open_events(); }
  StreamClocks& clocks() { return clocks_; }
  /// Maps the first address of each committed piece to its end. A piece is a page if memory is divisible, else a
  /// handle.
  const std::map<std::uintptr_t, std::uintptr_t>& pieces() const { return pieces_; }
  const std::map<std::uintptr_t, std::uintptr_t>& windows() const { return windows_; }
  bool is_committed(std::uintptr_t start, std::size_t bytes) const {
    const std::uintptr_t end = start + bytes;
    for (auto piece = piece_at(start); start < end; ++piece) {
      if (piece == pieces_.end() || piece->first > start) return false;
      start = piece->second;
    }
    return true;
  }

  void* reserve(std::size_t bytes) override {
    void* address = inner().reserve(bytes);
    if (address != nullptr) windows_[bits(address)] = bits(address) + bytes;
    return address;
  }
  void unreserve(void* address, std::size_t bytes) noexcept override {
    const auto window = windows_.find(bits(address));
    if (window == windows_.end() || window->second != bits(address) + bytes) complain("unreserves what is no window");
    if (overlaps_pieces(bits(address), bytes)) complain("unreserves committed memory");
    windows_.erase(bits(address));
    inner().unreserve(address, bytes);
  }
  bool commit(void* address, std::size_t bytes) override {
    check_range(bits(address), bytes, "commits");
    if (overlaps_pieces(bits(address), bytes)) complain("commits memory twice");
    if (committed_ + bytes > limit_) {
      complain("commits beyond the budget: " + std::to_string(committed_) + " + " + std::to_string(bytes) + " of " +
               std::to_string(limit_) + " bytes");
    }
    if (!inner().commit(address, bytes)) return false;
    add_pieces(bits(address), bytes);
    committed_ += bytes;
    most_committed_ = std::max(most_committed_, committed_);
    return true;
  }
  void decommit(void* address, std::size_t bytes) noexcept override {
    release(bits(address), bytes, "decommits");
    committed_ -= bytes;
    inner().decommit(address, bytes);
  }
  bool move(void* from, void* to, std::size_t bytes) override {
    check_range(bits(to), bytes, "moves to");
    if (overlaps_pieces(bits(to), bytes)) complain("moves memory to where there is some");
    const auto before = pieces_;
    if (!inner().move(from, to, bytes)) return false;
    release(bits(from), bytes, "moves");
    for (auto piece = before.lower_bound(bits(from)); piece != before.end() && piece->first < bits(from) + bytes;
         ++piece)
      pieces_[piece->first - bits(from) + bits(to)] = piece->second - bits(from) + bits(to);
    return true;
  }

  EventId record_event(Stream stream) override {
    const std::uint64_t handle = ThreadCacheTable::handle_of(stream);
    if (!clocks_.exists(handle)) complain("records an event on stream " + std::to_string(handle) + ", not there");
    const EventId event = inner().record_event(stream);
    clocks_.record(handle, event);
    return event;
  }
  bool event_finished(EventId event) override {
    const bool finished = inner().event_finished(event);
    if (finished) clocks_.host_knows(event);
    return finished;
  }
  void stream_wait(Stream stream, EventId event) override {
    const std::uint64_t handle = ThreadCacheTable::handle_of(stream);
    if (!clocks_.exists(handle)) complain("lets stream " + std::to_string(handle) + " wait, which is not there");
    inner().stream_wait(stream, event);
    clocks_.wait(handle, event);
  }
  void synchronize(EventId event) override {
    inner().synchronize(event);
    clocks_.host_knows(event);
  }
  void discard_event(EventId event) noexcept override {
    clocks_.forget(event);
    inner().discard_event(event);
  }

 private:
  static std::uintptr_t bits(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

  void complain(const std::string& what) {
    if (violation_.empty()) violation_ = "the pool " + what;
  }
  std::map<std::uintptr_t, std::uintptr_t>::const_iterator piece_at(std::uintptr_t address) const {
    auto piece = pieces_.upper_bound(address);
    if (piece != pieces_.begin() && std::prev(piece)->second > address) --piece;
    return piece;
  }
  bool overlaps_pieces(std::uintptr_t start, std::size_t bytes) const {
    const auto piece = piece_at(start);
    return piece != pieces_.end() && piece->first < start + bytes;
  }
  void check_range(std::uintptr_t start, std::size_t bytes, const char* verb) {
    if (bytes == 0 || start % granularity() != 0 || bytes % granularity() != 0)
      complain(std::string(verb) + " an odd range of " + std::to_string(bytes) + " bytes");
    auto window = windows_.upper_bound(start);
    if (window == windows_.begin() || std::prev(window)->second < start + bytes)
      complain(std::string(verb) + " addresses outside its windows");
  }
  void add_pieces(std::uintptr_t start, std::size_t bytes) {
    if (!divisible()) {
      pieces_[start] = start + bytes;
      return;
    }
    for (const std::uintptr_t end = start + bytes; start != end; start += granularity())
      pieces_[start] = start + granularity();
  }
  void release(std::uintptr_t start, std::size_t bytes, const char* verb) noexcept {
    check_range(start, bytes, verb);
    if (!is_committed(start, bytes)) complain(std::string(verb) + " what is not committed");
    const std::string wrong = before_release(start, bytes);
    if (!wrong.empty()) complain(std::string(verb) + " " + wrong);
    auto piece = piece_at(start);
    while (piece != pieces_.end() && piece->first < start + bytes) {
      if (piece->first < start || piece->second > start + bytes) complain(std::string(verb) + " a part of a handle");
      piece = pieces_.erase(piece);
    }
  }

  std::size_t limit_ = SIZE_MAX;
  std::size_t committed_ = 0;
  std::size_t most_committed_ = 0;
  std::string violation_;
  StreamClocks clocks_;
  std::map<std::uintptr_t, std::uintptr_t> pieces_;
  std::map<std::uintptr_t, std::uintptr_t> windows_;
};

}  // namespace poolgrad::testing
