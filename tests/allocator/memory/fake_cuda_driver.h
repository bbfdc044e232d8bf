// A CUDA driver without a GPU. Handles are ranges of a file in memory and mappings are mappings of it, so memory that
// is moved or mapped twice behaves as on a device, including its bytes. It throws CudaError where a rule of the real
// driver is broken, records every call, and fails a chosen one.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"

namespace poolgrad::testing {

class FakeCudaDriver : public CudaDriver {
 public:
  static constexpr std::size_t page = std::size_t{2} << 20;
  /// The device is out of memory; an error; the host is out of memory while it makes the text of an error.
  enum class Failure { out_of_memory, error, no_text };

  explicit FakeCudaDriver(std::size_t capacity, std::size_t granularity = page)
      : capacity_(capacity), granularity_(granularity), file_(memfd_create("fake_cuda", 0)) {}
  ~FakeCudaDriver() override { close(file_); }

  /// Makes call number `call` from now on, counted from 1, return a refusal or throw. 0: none.
  void fail_call(std::size_t call, Failure failure) {
    const std::lock_guard lock(mutex_);
    countdown_ = call;
    failure_ = failure;
  }
  /// Work before an event is not done until a wait for the event. Without this call, work is done at once.
  void delay_events() {
    const std::lock_guard lock(mutex_);
    delayed_ = true;
  }
  /// Returns the calls so far that name a stream, with its handle, as "event_record 7".
  std::vector<std::string> stream_calls() const {
    const std::lock_guard lock(mutex_);
    return stream_calls_;
  }
  /// Returns the names of the calls so far.
  std::vector<std::string> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  void forget_calls() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
    stream_calls_.clear();
  }
  /// Returns the number of handles, mappings, reservations, segments and events that exist.
  std::size_t objects() const {
    const std::lock_guard lock(mutex_);
    return handles_.size() + mappings_.size() + reserved_.size() + segments_.size() + events_.size() +
           registered_.size();
  }
  std::size_t events() const {
    const std::lock_guard lock(mutex_);
    return events_.size();
  }

  std::size_t granularity() override { return granularity_; }
  MemoryInfo memory_info() override {
    const std::lock_guard lock(mutex_);
    return {.free = capacity_ - committed_, .total = capacity_};
  }

  std::uintptr_t address_reserve(std::size_t bytes, std::size_t alignment) override {
    const std::lock_guard lock(mutex_);
    if (!allowed("reserve") || bytes > std::size_t{1} << 46) return 0;
    void* mapped = mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return 0;
    const auto start = (reinterpret_cast<std::uintptr_t>(mapped) + alignment - 1) / alignment * alignment;
    reserved_[start] = {bytes, mapped, bytes + alignment};
    return start;
  }
  void address_free(std::uintptr_t address, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    allowed("unreserve");
    const auto entry = reserved_.find(address);
    demand(entry != reserved_.end() && entry->second.bytes == bytes, "unreserve");
    const auto mapping = mappings_.lower_bound(address);
    demand(mapping == mappings_.end() || mapping->first >= address + bytes, "unreserve of mapped addresses");
    munmap(entry->second.mapped, entry->second.mapped_bytes);
    reserved_.erase(entry);
  }

  std::optional<std::uint64_t> create(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (!allowed("create") || bytes > capacity_ - committed_) return std::nullopt;
    demand(bytes % granularity_ == 0, "create");
    committed_ += bytes;
    const std::uint64_t handle = end_of_file_ + 1;  // its place in the file; 0 means no handle
    end_of_file_ += bytes;
    demand(ftruncate(file_, static_cast<off_t>(end_of_file_)) == 0, "create");
    handles_[handle] = bytes;
    return handle;
  }
  void release(std::uint64_t handle) override {
    const std::lock_guard lock(mutex_);
    allowed("release");
    demand(handles_.contains(handle), "release");
    for (const auto& [address, mapping] : mappings_) demand(mapping.handle != handle, "release of a mapped handle");
    committed_ -= handles_[handle];
    handles_.erase(handle);
  }
  bool map(std::uintptr_t address, std::size_t bytes, std::uint64_t handle) override {
    const std::lock_guard lock(mutex_);
    if (!allowed("map")) return false;
    demand(handles_.contains(handle) && handles_[handle] == bytes, "map");
    const auto window = reserved_.upper_bound(address);
    demand(window != reserved_.begin() && address - std::prev(window)->first <= std::prev(window)->second.bytes - bytes,
           "map outside of reserved addresses");
    const auto after = mappings_.upper_bound(address);
    demand(after == mappings_.end() || after->first >= address + bytes, "map over a mapping");
    demand(after == mappings_.begin() || std::prev(after)->first + std::prev(after)->second.bytes <= address,
           "map over a mapping");
    mappings_[address] = {bytes, handle};
    return true;
  }
  bool set_access(std::uintptr_t address, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (!allowed("set_access")) return false;
    for (std::size_t done = 0; done < bytes;) {
      const auto entry = mappings_.find(address + done);
      demand(entry != mappings_.end() && entry->second.bytes <= bytes - done, "set_access");
      void* place = reinterpret_cast<void*>(entry->first);
      demand(mmap(place, entry->second.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
                  static_cast<off_t>(entry->second.handle - 1)) == place,
             "set_access");
      done += entry->second.bytes;
    }
    return true;
  }
  void unmap(std::uintptr_t address, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    allowed("unmap");
    const auto entry = mappings_.find(address);
    demand(entry != mappings_.end() && entry->second.bytes == bytes, "unmap");
    mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
    mappings_.erase(entry);
  }

  std::uintptr_t malloc(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (!allowed("malloc") || bytes > capacity_ - committed_) return 0;
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return 0;
    committed_ += bytes;
    segments_[reinterpret_cast<std::uintptr_t>(mapped)] = bytes;
    return reinterpret_cast<std::uintptr_t>(mapped);
  }
  void free(std::uintptr_t address) override {
    const std::lock_guard lock(mutex_);
    allowed("free");
    demand(segments_.contains(address), "free");
    munmap(reinterpret_cast<void*>(address), segments_[address]);
    committed_ -= segments_[address];
    segments_.erase(address);
  }

  void fill(std::uintptr_t address, std::size_t bytes, unsigned char value, std::uint64_t) override {
    const std::lock_guard lock(mutex_);
    allowed("fill");
    std::fill_n(reinterpret_cast<unsigned char*>(address), bytes, value);
  }

  bool host_register(std::uintptr_t address, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (!allowed("host_register")) return false;
    demand(registered_.emplace(address, bytes).second, "host_register");
    return true;
  }
  void host_unregister(std::uintptr_t address) override {
    const std::lock_guard lock(mutex_);
    allowed("host_unregister");
    demand(registered_.erase(address) == 1, "host_unregister");
  }

  std::uint64_t event_create() override {
    const std::lock_guard lock(mutex_);
    if (!allowed("event_create")) throw CudaError("[event_create] out of memory");
    events_.insert(++last_event_);
    return last_event_;
  }
  void event_destroy(std::uint64_t event) override {
    const std::lock_guard lock(mutex_);
    allowed("event_destroy");
    demand(events_.erase(event) == 1, "event_destroy");
  }
  void event_record(std::uint64_t event, std::uint64_t stream) override { on_stream("event_record", event, stream); }
  bool event_query(std::uint64_t event) override {
    const std::lock_guard lock(mutex_);
    known("event_query", event);
    return !delayed_;
  }
  void event_synchronize(std::uint64_t event) override {
    const std::lock_guard lock(mutex_);
    known("event_synchronize", event);
  }
  void stream_wait(std::uint64_t stream, std::uint64_t event) override { on_stream("stream_wait", event, stream); }

 private:
  struct Mapping {
    std::size_t bytes;
    std::uint64_t handle;
  };
  struct Reservation {
    std::size_t bytes;
    void* mapped;
    std::size_t mapped_bytes;
  };

  static void demand(bool kept, const char* rule) {
    if (!kept) throw CudaError("[" + std::string(rule) + "] a rule of the driver is broken");
  }
  // Records a call; returns false if the call must be refused.
  bool allowed(const char* name) {
    calls_.emplace_back(name);
    if (countdown_ == 0 || --countdown_ != 0) return true;
    if (failure_ == Failure::error) throw CudaError("[" + std::string(name) + "] failed on request");
    if (failure_ == Failure::no_text) throw std::bad_alloc();
    return false;
  }
  void known(const char* name, std::uint64_t event) {
    allowed(name);
    demand(events_.contains(event), name);
  }
  void on_stream(const char* name, std::uint64_t event, std::uint64_t stream) {
    const std::lock_guard lock(mutex_);
    known(name, event);
    stream_calls_.push_back(name + (" " + std::to_string(stream)));
  }

  mutable std::mutex mutex_;
  const std::size_t capacity_;
  const std::size_t granularity_;
  const int file_;
  std::size_t end_of_file_ = 0;
  std::size_t committed_ = 0;
  std::map<std::uint64_t, std::size_t> handles_;
  std::map<std::uintptr_t, Mapping> mappings_;
  std::map<std::uintptr_t, Reservation> reserved_;
  std::map<std::uintptr_t, std::size_t> segments_;  // of malloc()
  std::map<std::uintptr_t, std::size_t> registered_;
  std::set<std::uint64_t> events_;
  std::uint64_t last_event_ = 0;
  std::vector<std::string> calls_;
  std::vector<std::string> stream_calls_;
  bool delayed_ = false;
  std::size_t countdown_ = 0;
  Failure failure_ = Failure::error;
};

}  // namespace poolgrad::testing
