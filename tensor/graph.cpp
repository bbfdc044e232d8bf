#include "tensor/graph.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/environment.h"
#include "allocator/base/rounding.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/stream_capture.h"
#include "kernels/elementwise.h"
#include "tensor/geometry.h"

namespace poolgrad {

namespace {

thread_local Graph* recording_graph = nullptr;

constexpr std::size_t most_values = std::size_t{64} << 10, value_alignment = 16;

/// The stream and the memory pool of a recording. The pool takes its memory from the budget of the device's shared
/// pool, so that both together stay within it.
class PrivatePool {
 public:
  PrivatePool(Device device, std::unique_ptr<CudaDriver> driver)
      : driver_(std::move(driver)), stream_{device, driver_->stream_create()} {}
  ~PrivatePool() {
    wait_for_readers();
    own_.reset();
    give_budget_back();
    try {
      shared().stream_destroyed(stream_);
      pinned_allocator_for(stream_.device).stream_destroyed(stream_);
      driver_->stream_destroy(stream_.id);
    } catch (const Error&) {  // the device is lost
    }
  }
  PrivatePool(const PrivatePool&) = delete;
  PrivatePool& operator=(const PrivatePool&) = delete;

  /// Registers a stream that replays, and so may read results of the replay. The legacy default stream stands for the
  /// per-thread streams, because it waits for all of them.
  void is_read_on(Stream stream) {
    if (stream.id == per_thread_stream) stream.id = 0;
    if (std::find(readers_.begin(), readers_.end(), stream) == readers_.end()) readers_.push_back(stream);
  }
  /// Returns the pool, with the rest of the device's budget as its limit until settle().
  CachingAllocator& open() {
    give_budget_back();
    // Releases the cached pages of the eager step to the recording. A finite byte count keeps the derived caches, such
    // as attention programs.
    shared().trim(shared().statistics().reserved_bytes.current);
    const std::size_t budget = shared().budget(), page = shared().memory().granularity();
    const std::size_t kept = std::max<std::size_t>(shared().statistics().reserved_bytes.current, page);
    shared().set_budget(std::min(budget, kept));
    taken_ = budget - std::min(budget, kept);
    if (own_ == nullptr) {
      AllocatorConfig config;
      config.deterministic = true;  // a recording cannot query events
      config.magazines = false;
      auto memory = std::make_unique<RecordedMemory>(stream_.device.index);
      memory_ = memory.get();
      own_ = std::make_unique<CachingAllocator>(std::move(memory), config);
    }
    memory_->set_limit(taken_);
    return *own_;
  }
  /// Reduces the pool's limit to the committed memory.
  void settle() {
    const std::size_t unused = taken_ - memory_->committed();
    shared().set_budget(shared().budget() + unused);
    taken_ -= unused;
    memory_->set_limit(taken_);
  }

  CachingAllocator& shared() const { return allocator_for(stream_.device); }
  const CachingAllocator* own() const { return own_.get(); }
  bool is_in_use() const { return own_ != nullptr && own_->statistics().allocated_bytes.current != 0; }
  CudaDriver& driver() const { return *driver_; }
  Stream stream() const { return stream_; }

 private:
  /// Waits, because pages must not be freed while queued work reads them. Ignores errors of that work; its owner
  /// reports them.
  void wait_for_readers() noexcept {
    const auto wait_for = [&](Stream reader) {
      const std::uint64_t event = driver_->event_create();
      try {
        driver_->event_record(event, reader.id);
        driver_->event_synchronize(event);
      } catch (const Error&) {  // the stream is gone; waits for the others anyway
      }
      driver_->event_destroy(event);
    };
    for (const Stream reader : readers_) {
      try {
        wait_for(reader);
      } catch (const Error&) {  // the device is lost
      }
    }
  }
  void give_budget_back() {
    if (taken_ != 0) shared().set_budget(shared().budget() + std::exchange(taken_, 0));
  }

  const std::unique_ptr<CudaDriver> driver_;
  const Stream stream_;
  std::unique_ptr<CachingAllocator> own_;
  RecordedMemory* memory_ = nullptr;  // of own_
  std::size_t taken_ = 0;             // from the shared pool's budget
  std::vector<Stream> readers_;
};

/// Pools of destroyed graphs whose tensors are still in use. Never destroyed, like the pools of devices.
class Orphans {
 public:
  static Orphans& all() {
    static auto* const orphans = new Orphans;
    return *orphans;
  }
  void add(std::unique_ptr<PrivatePool> pool) {
    const std::lock_guard lock(mutex_);
    pools_.push_back(std::move(pool));
  }
  void sweep() {
    const std::lock_guard lock(mutex_);
    std::erase_if(pools_, [](const auto& pool) { return !pool->is_in_use(); });
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<PrivatePool>> pools_;
};

}  // namespace

struct Graph::Impl {
  explicit Impl(Device device) : memory(std::make_unique<PrivatePool>(device, make_cuda_driver(device.index))) {}
  ~Impl() { forget(); }

  /// Waits for the recorded work and drops it.
  void forget() noexcept {
    if (!recorded) return;
    try {
      memory->driver().stream_synchronize(memory->stream().id);
      memory->driver().graph_destroy(*recorded);
    } catch (const Error&) {  // the device is lost
    }
    recorded.reset();
    kept.give_back();
    drop_values();
  }
  void drop_values() {
    compute.clear();
    staged.clear();
    if (void* const block = std::exchange(values, nullptr))
      own().deallocate(block, most_values, value_alignment, memory->stream());
  }
  CachingAllocator& own() const { return const_cast<CachingAllocator&>(*memory->own()); }

  std::unique_ptr<PrivatePool> memory;
  std::optional<std::uint64_t> recorded;
  KeptForGraph kept;

  struct Value {
    std::size_t offset;
    std::function<void(void*)> compute;
  };
  std::vector<Value> compute;
  std::vector<std::byte> staged;
  void* values = nullptr;  // on the device, as many bytes as are staged
};

Graph::Graph(Device device) {
  if (!device.is_cuda()) throw DeviceError("[graph] only CUDA devices record work, got " + to_string(device));
  Orphans::all().sweep();
  impl_ = std::make_unique<Impl>(device);
}

Graph::~Graph() {
  impl_->forget();
  if (impl_->memory->is_in_use()) Orphans::all().add(std::move(impl_->memory));
  Orphans::all().sweep();
}

Stream Graph::stream() const { return impl_->memory->stream(); }

Statistics Graph::statistics() const {
  const CachingAllocator* const own = impl_->memory->own();
  return own != nullptr ? own->statistics() : Statistics{};
}

Graph* Graph::recording() { return recording_graph; }

namespace {

/// Orders the work of stream `inner` after the earlier and before the later work of `outer`.
class Between {
 public:
  Between(CachingAllocator& pool, Stream outer, Stream inner) : pool_(pool), outer_(outer), inner_(inner) {
    pool_.order(inner_, outer_);
  }
  ~Between() {
    try {
      pool_.order(outer_, inner_);
    } catch (const Error&) {  // the device is lost; the next launch reports it
    }
  }
  Between(const Between&) = delete;
  Between& operator=(const Between&) = delete;

 private:
  CachingAllocator& pool_;
  const Stream outer_, inner_;
};

}  // namespace

void Graph::check_free() const {
  if (StreamCapture::current() != nullptr) throw Error("[graph] a step is being recorded in this thread already");
  if (switched_on("POOLGRAD_SYNC"))
    throw Error("[graph] POOLGRAD_SYNC=1 waits for every launch, which a recorded step cannot do");
}

void Graph::capture(const std::function<void()>& step) {
  check_free();
  impl_->forget();
  rehearse(step);
  record(step);
}

void Graph::rehearse(const std::function<void()>& step) {
  check_free();
  const PrivatePool& memory = *impl_->memory;
  const Between between(memory.shared(), current_stream(memory.stream().device), memory.stream());
  const StreamGuard guard(memory.stream());
  step();
}

void Graph::record(const std::function<void()>& step) {
  check_free();
  impl_->forget();
  PrivatePool& memory = *impl_->memory;
  const Between between(memory.shared(), current_stream(memory.stream().device), memory.stream());
  const StreamGuard guard(memory.stream());
  CachingAllocator& own = memory.open();
  struct Recording {
    explicit Recording(Graph& graph) { recording_graph = &graph; }
    ~Recording() { recording_graph = nullptr; }
  };
  try {
    impl_->values = own.allocate(most_values, value_alignment, memory.stream());
    StreamCapture capture(memory.stream(), memory.driver(), own);
    {
      const Recording recording(*this);
      step();
    }
    impl_->recorded = capture.finish();
    impl_->kept = capture.take_kept();
  } catch (...) {
    impl_->drop_values();
    memory.settle();
    throw;
  }
  memory.settle();
}

void Graph::replay() {
  if (!impl_->recorded) throw Error("[graph] nothing is recorded: capture() comes before replay()");
  if (StreamCapture::current() != nullptr) throw Error("[graph] a recorded step cannot replay another one");
  for (const Impl::Value& value : impl_->compute) value.compute(impl_->staged.data() + value.offset);
  PrivatePool& memory = *impl_->memory;
  const Stream outer = current_stream(memory.stream().device);
  memory.is_read_on(outer);
  const Between between(memory.shared(), outer, memory.stream());
  if (!impl_->staged.empty()) {
    const auto bytes = [&](void* data) {
      return view_at(data, DType::u8, contiguous_geometry({static_cast<std::int64_t>(impl_->staged.size())}));
    };
    kernels::copy(memory.stream(), bytes(impl_->values), bytes(impl_->staged.data()));
  }
  memory.driver().graph_launch(*impl_->recorded, memory.stream().id);
}

const void* Graph::value(std::size_t bytes, std::function<void(void*)> compute) {
  const std::size_t offset = impl_->staged.size(), end = round_up(offset + bytes, value_alignment);
  if (bytes > most_values || end > most_values)
    throw ValueError("[graph] a recorded step has at most " + format_bytes(most_values) + " of host values");
  impl_->staged.resize(end);
  impl_->compute.push_back({offset, std::move(compute)});
  return static_cast<const std::byte*>(impl_->values) + offset;
}

void Graph::before_replay(std::function<void()> action) {
  impl_->compute.push_back({0, [act = std::move(action)](void*) { act(); }});
}

}  // namespace poolgrad
