#include "tests/emulation/device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/stream.h"
#include "tests/emulation/faults.h"

namespace poolgrad::emulation {

thread_local Activity activity;
thread_local int current = -1;

namespace {

void demand(bool kept, const char* call, const char* rule) {
  if (!kept) throw CudaError("[" + std::string(call) + "] " + rule);
}

// Distinguishes the per-thread streams of threads.
constexpr std::uint64_t per_thread_bit = std::uint64_t{1} << 63;
std::uint64_t own(std::uint64_t stream) {
  static std::atomic<std::uint64_t> threads{0};
  thread_local const std::uint64_t number = ++threads;
  return stream == per_thread_stream ? per_thread_bit + number : stream;
}

}  // namespace

Device::Device(int index, std::size_t capacity, std::shared_ptr<Schedule> schedule)
    : index_(index),
      capacity_(capacity),
      file_(memfd_create("poolgrad_emulated_device", MFD_CLOEXEC)),
      schedule_(std::move(schedule)),
      mutex_(schedule_->mutex),
      streams_(schedule_->streams) {
  demand(file_ >= 0, "emulation", "memfd_create fails");
  demand(handle_faults(), "emulation", "the handler of page faults cannot be set");
  const std::lock_guard lock(mutex_);
  schedule_->devices.push_back(this);
}

Device::~Device() {
  while (!reserved_.empty()) driver()->address_free(reserved_.begin()->first, reserved_.begin()->second.bytes);
  const std::lock_guard lock(mutex_);
  std::erase(schedule_->devices, this);
  close(file_);
}

void Device::open(int user) {
  const int before = std::exchange(user_, user);
  if (before == user) return;
  for (const auto& [address, mapping] : mappings_)
    if (const bool wanted = mapping.users.contains(user); wanted != mapping.users.contains(before))
      mprotect(reinterpret_cast<void*>(address), mapping.bytes, wanted ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void Schedule::open(const Device* one, const Device* other) {
  for (Device* device : devices)
    device->open(one == nullptr ? Device::nobody : device == other ? device->index_ : one->index_);
}

const Device::Mapping* Device::mapping_at(std::uintptr_t address) const {
  const auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return nullptr;
  const auto& [start, mapping] = *std::prev(after);
  return address - start < mapping.bytes ? &mapping : nullptr;
}

bool Device::is_open_to(int index, const void* address) const {
  const std::lock_guard lock(mutex_);
  const Mapping* const mapping = mapping_at(reinterpret_cast<std::uintptr_t>(address));
  return mapping != nullptr && mapping->users.contains(index);
}

template <class Run>
auto Device::working(const Run& run) {
  struct Close {
    Schedule& schedule;
    ~Close() { schedule.open(nullptr, nullptr); }
  } close{*schedule_};
  return run();
}

namespace {
constexpr int device_shift = 52;
}

std::uint64_t Device::key(std::uint64_t stream) const {
  demand(stream <= first_own_stream || stream > last_stream_ || made_streams_.contains(stream), "stream",
         "cudaErrorInvalidResourceHandle: the stream is destroyed");
  return own(stream) ^ static_cast<std::uint64_t>(index_) << device_shift;
}

bool Device::is_per_thread(std::uint64_t key) const {
  constexpr std::uint64_t of_device = per_thread_bit - (std::uint64_t{1} << device_shift);
  return (key & per_thread_bit) != 0 && (key & of_device) >> device_shift == static_cast<std::uint64_t>(index_);
}

std::uint64_t Device::named(std::uint64_t event) const {
  return event | static_cast<std::uint64_t>(index_) << device_shift;
}

void Device::enqueue(const char* op, std::uint64_t stream, Streams::Work work, const Device* other) {
  const std::lock_guard lock(mutex_);
  working([&] {
    streams_.enqueue(key(stream), [this, op, other, run = std::move(work)] {
      schedule_->open(this, other);
      activity = {op};
      try {
        run();
      } catch (const std::exception& error) {
        if (failure_.empty()) failure_ = error.what();
      }
      activity = {};
    });
  });
}

void Device::synchronize(std::uint64_t stream, const char* call) {
  {
    const std::lock_guard lock(mutex_);
    working([&] { streams_.synchronize_stream(key(stream), call); });
  }
  take_failure();
}

void Device::wait(std::uint64_t stream, const Device& other, std::uint64_t earlier) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t event = streams_.create_event();
  streams_.record(event, other.key(earlier));
  streams_.wait(key(stream), event);
  streams_.destroy_event(event);
}

bool Device::is_recorded(std::uint64_t stream) const {
  const std::lock_guard lock(mutex_);
  return streams_.is_captured(key(stream));
}

std::shared_ptr<bool> Device::hold(std::uint64_t stream) {
  const std::lock_guard lock(mutex_);
  return streams_.hold(key(stream));
}

void Device::let_go(bool& held) {
  const std::lock_guard lock(mutex_);
  held = true;
}

void Device::copy(std::uint64_t stream, void* to, const void* from, std::size_t bytes) {
  constexpr const char* call = "cudaMemcpyAsync";
  const auto now_or_later = [&](const void* address) { return owns(address) || has_registered(address, bytes); };
  if (!now_or_later(from) || !now_or_later(to)) {
    const std::lock_guard lock(mutex_);
    if (streams_.is_captured(key(stream)))
      streams_.refuse_captured(key(stream), call, "a recorded stream cannot copy pageable host memory");
  }
  if (owns(from) && !owns(to)) copies_to_host_.fetch_add(1, std::memory_order_relaxed);
  if (now_or_later(from)) {
    enqueue(call, stream, [=] { std::memcpy(to, from, bytes); });
    if (!now_or_later(to)) synchronize(stream);
    return;
  }
  const auto* begin = static_cast<const char*>(from);
  enqueue(call, stream,
          [to, staged = std::vector<char>(begin, begin + bytes)] { std::memcpy(to, staged.data(), staged.size()); });
}

void Device::take_failure() {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw CudaError(std::exchange(failure_, {}));
}

std::uint64_t Device::next_seed() {
  const std::lock_guard lock(mutex_);
  return schedule_->seeds();
}

bool Device::owns(const void* pointer) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const std::lock_guard lock(mutex_);
  const auto after = reserved_.upper_bound(address);
  return after != reserved_.begin() && address - std::prev(after)->first < std::prev(after)->second.bytes;
}

bool Device::has_registered(const void* pointer, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer), end = begin + bytes;
  const std::lock_guard lock(mutex_);
  const auto after = registered_.lower_bound(end);
  if (after == registered_.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  if (start + size <= begin) return false;
  demand(start <= begin && end <= start + size, "cudaMemcpyAsync",
         "the range is not within one registration of host memory");
  return true;
}

/// The CudaDriver interface of a device.
class Driver : public CudaDriver {
 public:
  explicit Driver(Device& on) : on_(on) {}

  std::size_t granularity() override { return Device::page; }
  MemoryInfo memory_info() override {
    const std::lock_guard lock(on_.mutex_);
    return {.free = on_.capacity_ - on_.committed_, .total = on_.capacity_};
  }

  std::string identity() override { return "emulated GPU " + std::to_string(on_.index()); }
  void with_current(const std::function<void()>& call) override {
    struct Current {
      ~Current() { current = before; }
      const int before;
    };
    const Current restored{std::exchange(current, on_.index())};
    call();
  }

  std::uintptr_t address_reserve(std::size_t bytes, std::size_t alignment) override {
    if (bytes > std::size_t{1} << 46) return 0;
    const std::lock_guard lock(on_.mutex_);
    void* mapped = mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return 0;
    const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(mapped) + alignment - 1) / alignment * alignment;
    name_addresses(on_.index_, begin, bytes);
    on_.reserved_[begin] = {bytes, mapped, bytes + alignment};
    return begin;
  }
  void address_free(std::uintptr_t address, std::size_t bytes) override {
    const std::lock_guard lock(on_.mutex_);
    const auto entry = on_.reserved_.find(address);
    demand(entry != on_.reserved_.end() && entry->second.bytes == bytes, "cuMemAddressFree", "no such reservation");
    forget_addresses(address);
    munmap(entry->second.mapped, entry->second.mapped_bytes);
    on_.reserved_.erase(entry);
  }

  std::optional<std::uint64_t> create(std::size_t bytes) override {
    const std::lock_guard lock(on_.mutex_);
    demand(bytes > 0 && bytes % Device::page == 0, "cuMemCreate", "the size must be a multiple of the granularity");
    if (bytes > on_.capacity_ - on_.committed_) return std::nullopt;
    const std::size_t offset = on_.end_of_file_;
    demand(ftruncate(on_.file_, static_cast<off_t>(offset + bytes)) == 0, "cuMemCreate", "the host has no memory left");
    on_.end_of_file_ += bytes;
    void* poisoned = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, on_.file_, static_cast<off_t>(offset));
    demand(poisoned != MAP_FAILED, "cuMemCreate", "the host has no memory left");
    std::memset(poisoned, 0xff, bytes);
    munmap(poisoned, bytes);
    on_.committed_ += bytes;
    on_.handles_[++on_.last_handle_] = {on_.file_, offset, bytes, false};
    return on_.last_handle_;
  }
  void release(std::uint64_t handle) override {
    const std::lock_guard lock(on_.mutex_);
    const auto entry = on_.handles_.find(handle);
    demand(entry != on_.handles_.end(), "cuMemRelease", "there is no such handle");
    demand(std::none_of(on_.mappings_.begin(), on_.mappings_.end(),
                        [&](const auto& mapping) { return mapping.second.handle == handle; }),
           "cuMemRelease", "the handle is still mapped");
    const Device::Handle& gone = entry->second;
    if (gone.file != on_.file_) {
      close(gone.file);
    } else {
      if (!gone.exported)  // an exported handle may be in use elsewhere
        fallocate(gone.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(gone.offset),
                  static_cast<off_t>(gone.bytes));
      on_.committed_ -= gone.bytes;
    }
    on_.handles_.erase(entry);
  }
  bool map(std::uintptr_t address, std::size_t bytes, std::uint64_t handle) override {
    const std::lock_guard lock(on_.mutex_);
    const auto known = on_.handles_.find(handle);
    demand(known != on_.handles_.end() && known->second.bytes == bytes, "cuMemMap", "no handle has this id and size");
    const auto window = on_.reserved_.upper_bound(address);
    demand(window != on_.reserved_.begin() && bytes <= std::prev(window)->second.bytes &&
               address - std::prev(window)->first <= std::prev(window)->second.bytes - bytes,
           "cuMemMap", "the addresses are not reserved");
    const auto after = on_.mappings_.upper_bound(address);
    demand((after == on_.mappings_.end() || after->first >= address + bytes) &&
               (after == on_.mappings_.begin() || std::prev(after)->first + std::prev(after)->second.bytes <= address),
           "cuMemMap", "memory is mapped at these addresses already");
    on_.mappings_[address] = {bytes, handle, {}};
    return true;
  }
  bool set_access(std::uintptr_t address, std::size_t bytes) override {
    return set_access_of(on_.index_, address, bytes);
  }
  bool is_reachable_from(int peer) override {
    const std::lock_guard lock(on_.mutex_);
    return std::ranges::count(on_.schedule_->devices, peer, [](const Device* device) { return device->index_; }) > 0;
  }
  bool set_access_of(int user, std::uintptr_t address, std::size_t bytes) override {
    const std::lock_guard lock(on_.mutex_);
    for (std::size_t done = 0; done < bytes;) {
      const auto entry = on_.mappings_.find(address + done);
      demand(entry != on_.mappings_.end() && entry->second.bytes <= bytes - done, "cuMemSetAccess",
             "the range must consist of whole mappings");
      if (entry->second.users.empty()) place(entry->first, on_.handles_.at(entry->second.handle));
      entry->second.users.insert(user);
      done += entry->second.bytes;
    }
    return true;
  }
  void unmap(std::uintptr_t address, std::size_t bytes) override {
    const std::lock_guard lock(on_.mutex_);
    const auto entry = on_.mappings_.find(address);
    demand(entry != on_.mappings_.end() && entry->second.bytes == bytes, "cuMemUnmap", "no such mapping");
    mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
    on_.mappings_.erase(entry);
  }

  /// Returns the device's file, positioned at the handle's begin.
  int export_handle(std::uint64_t handle) override {
    const std::lock_guard lock(on_.mutex_);
    const auto known = on_.handles_.find(handle);
    demand(known != on_.handles_.end(), "cuMemExportToShareableHandle", "there is no such handle");
    known->second.exported = true;
    const std::string path = "/proc/self/fd/" + std::to_string(known->second.file);
    const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
    demand(descriptor >= 0 && lseek(descriptor, static_cast<off_t>(known->second.offset), SEEK_SET) >= 0,
           "cuMemExportToShareableHandle", "no file descriptor is left");
    return descriptor;
  }
  std::optional<std::uint64_t> import_handle(int descriptor, std::size_t bytes) override {
    constexpr const char* call = "cuMemImportFromShareableHandle";
    const std::lock_guard lock(on_.mutex_);
    const off_t offset = lseek(descriptor, 0, SEEK_CUR);
    struct stat file {};
    demand(offset >= 0 && fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode) &&
               bytes <= static_cast<std::size_t>(file.st_size - offset),
           call, "the descriptor holds no device memory of this size");
    const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    demand(own >= 0, call, "no file descriptor is left");
    on_.handles_[++on_.last_handle_] = {own, static_cast<std::size_t>(offset), bytes, false};
    return on_.last_handle_;
  }

  /// Maps pages at a fresh address.
  std::uintptr_t malloc(std::size_t bytes) override {
    const std::size_t whole = (bytes + Device::page - 1) / Device::page * Device::page;
    const std::optional<std::uint64_t> handle = create(whole);
    if (!handle) return 0;
    const std::uintptr_t address = address_reserve(whole, Device::page);
    demand(address != 0, "cudaMalloc", "no addresses are left");
    map(address, whole, *handle);
    set_access(address, whole);
    allocated_[address] = {whole, *handle};
    return address;
  }
  void free(std::uintptr_t address) override {
    const auto entry = allocated_.find(address);
    demand(entry != allocated_.end(), "cudaFree", "no such memory");
    const auto [bytes, handle] = entry->second;
    allocated_.erase(entry);
    unmap(address, bytes);
    release(handle);
    address_free(address, bytes);
  }

  void fill(std::uintptr_t address, std::size_t bytes, unsigned char value, std::uint64_t stream) override {
    on_.enqueue("cudaMemsetAsync", stream, [=] { std::memset(reinterpret_cast<void*>(address), value, bytes); });
  }

  bool host_register(std::uintptr_t address, std::size_t bytes) override {
    const std::lock_guard lock(on_.mutex_);
    const auto after = on_.registered_.lower_bound(address);
    demand((after == on_.registered_.end() || after->first >= address + bytes) &&
               (after == on_.registered_.begin() || std::prev(after)->first + std::prev(after)->second <= address),
           "cudaHostRegister", "part of the memory is registered already");
    on_.registered_[address] = bytes;
    return true;
  }
  void host_unregister(std::uintptr_t address) override {
    const std::lock_guard lock(on_.mutex_);
    demand(on_.registered_.erase(address) == 1, "cudaHostUnregister", "the memory is not registered");
  }

  std::uint64_t event_create() override {
    const std::lock_guard lock(on_.mutex_);
    return on_.named(on_.streams_.create_event());
  }
  void event_destroy(std::uint64_t event) override {
    const std::lock_guard lock(on_.mutex_);
    on_.streams_.destroy_event(of_any_device(event));
  }
  void event_record(std::uint64_t event, std::uint64_t stream) override {
    const std::lock_guard lock(on_.mutex_);
    demand(on_.named(of_any_device(event)) == event, "cudaEventRecord", "the event belongs to another device");
    if (stream == 0)  // the legacy default stream waits for the per-thread streams of all threads
      on_.streams_.wait_for_all(on_.key(0), [this](std::uint64_t key) { return on_.is_per_thread(key); });
    on_.streams_.record(of_any_device(event), on_.key(stream));
  }
  bool event_query(std::uint64_t event) override {
    const std::lock_guard lock(on_.mutex_);
    return on_.working([&] { return on_.streams_.query(of_any_device(event)); });
  }
  void event_synchronize(std::uint64_t event) override {
    const std::lock_guard lock(on_.mutex_);
    on_.working([&] { on_.streams_.synchronize(of_any_device(event)); });
  }
  void stream_wait(std::uint64_t stream, std::uint64_t event) override {
    const std::lock_guard lock(on_.mutex_);
    on_.streams_.wait(on_.key(stream), of_any_device(event));
  }

  std::uint64_t stream_create() override {
    const std::lock_guard lock(on_.mutex_);
    on_.made_streams_.insert(++on_.last_stream_);
    return on_.last_stream_;
  }
  void stream_destroy(std::uint64_t stream) override {
    const std::lock_guard lock(on_.mutex_);
    demand(on_.made_streams_.erase(stream) == 1, "cudaStreamDestroy", "there is no such stream");
  }
  void stream_synchronize(std::uint64_t stream) override { on_.synchronize(stream); }
  void begin_capture(std::uint64_t stream) override {
    demand(stream != 0, "cudaStreamBeginCapture", "the default stream cannot be recorded");
    const std::lock_guard lock(on_.mutex_);
    on_.streams_.begin_capture(on_.key(stream));
  }
  bool is_captured(std::uint64_t stream) override { return on_.is_recorded(stream); }
  std::uint64_t end_capture(std::uint64_t stream) override {
    const std::lock_guard lock(on_.mutex_);
    on_.graphs_[on_.last_graph_ + 1] = on_.streams_.end_capture(on_.key(stream));
    return ++on_.last_graph_;
  }
  void graph_launch(std::uint64_t graph, std::uint64_t stream) override {
    const std::lock_guard lock(on_.mutex_);
    const auto known = on_.graphs_.find(graph);
    demand(known != on_.graphs_.end(), "cudaGraphLaunch", "there is no such graph");
    on_.streams_.launch(on_.key(stream), known->second);
  }
  void graph_destroy(std::uint64_t graph) override {
    const std::lock_guard lock(on_.mutex_);
    demand(on_.graphs_.erase(graph) == 1, "cudaGraphExecDestroy", "there is no such graph");
  }

 private:
  /// Maps the handle's pages at the address, without access yet.
  static void place(std::uintptr_t address, const Device::Handle& handle) {
    void* const wanted = reinterpret_cast<void*>(address);
    demand(mmap(wanted, handle.bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, handle.file,
                static_cast<off_t>(handle.offset)) == wanted,
           "cuMemMap", "the host has no memory left");
  }
  static std::uint64_t of_any_device(std::uint64_t event) { return event & ((std::uint64_t{1} << device_shift) - 1); }

  Device& on_;
  std::map<std::uintptr_t, std::pair<std::size_t, std::uint64_t>> allocated_;  // by malloc(): bytes and handle
};

std::unique_ptr<CudaDriver> Device::driver() { return std::make_unique<Driver>(*this); }

}  // namespace poolgrad::emulation
