#include "kernels/profile.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "kernels/cost.h"
#include "kernels/launch.h"

namespace poolgrad::kernels {

namespace {

std::atomic<bool> taken{false};
std::mutex calls_mutex;
std::vector<KernelCall> recorded;  // guarded by calls_mutex

std::uint64_t nanoseconds_since_1970() {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
}

std::string_view kind_of(UnaryOp op) { return to_string(op); }
std::string_view kind_of(BinaryOp op) { return to_string(op); }
std::string_view kind_of(ReduceOp op) { return to_string(op); }
std::string_view kind_of(const auto&) { return {}; }

double traffic_of(std::span<const View> views) {
  double bytes = 0;
  for (const View& view : views) bytes += bytes_of(view);
  return bytes;
}

/// Cost of a call, from its operands.
Cost cost_of(Stream, const Gemm& shape, const void*, const void*, void*) { return cost_of(shape); }
template <class Options>
Cost cost_of(Stream, const Options& options, std::span<const UpdateOperands> all) {
  Cost cost;
  for (const UpdateOperands& one : all) cost.bytes += cost_of(one, options.states()).bytes;
  return cost;
}
Cost cost_of(Stream, const View& sum, std::span<const View> all) { return {traffic_of(all) + bytes_of(sum), 0}; }
Cost cost_of(Stream, const auto&... operands) { return traffic(operands...); }

/// Times one call, from its construction to end().
class Timed {
 public:
  Timed(Stream stream, std::string_view kernel) : stream_(stream), outer_(innermost_) {
    synchronize(stream);
    call_.kernel = kernel;
    call_.scope = current_tag().scope;
    call_.begin = nanoseconds_since_1970();
    innermost_ = this;
  }
  ~Timed() { innermost_ = outer_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

  void end(std::string_view kind, const Cost& cost) {
    synchronize(stream_);
    call_.kind = kind;
    call_.span = nanoseconds_since_1970() - call_.begin;
    call_.nanoseconds = call_.span - std::min(call_.span, inner_);
    call_.bytes = cost.bytes;
    call_.operations = cost.operations;
    if (outer_ != nullptr) outer_->inner_ += call_.span;
    const std::lock_guard lock(calls_mutex);
    recorded.push_back(call_);
  }

 private:
  static inline thread_local Timed* innermost_ = nullptr;

  Stream stream_;
  Timed* outer_;
  std::uint64_t inner_ = 0;  // time of nested kernel calls
  KernelCall call_;
};

constexpr std::string_view kernel_names[] = {
#define POOLGRAD_KERNEL(name) #name,
    POOLGRAD_KERNELS(POOLGRAD_KERNEL) POOLGRAD_CPU_KERNELS(POOLGRAD_KERNEL)
#undef POOLGRAD_KERNEL
};

/// Wraps a table entry with a timer.
template <auto Entry, std::size_t Name, class Function>
struct TimedKernel;
template <auto Entry, std::size_t Name, class... Rest>
struct TimedKernel<Entry, Name, void (*)(Stream, Rest...)> {
  static void call(Stream stream, Rest... rest) {
    std::string_view kind;
    ((kind = kind.empty() ? kind_of(rest) : kind), ...);
    const Cost cost = cost_of(stream, rest...);  // before the call overwrites operands
    Timed timed(stream, kernel_names[Name]);
    ((stream.device.is_cpu() ? cpu_kernels : cuda_kernels).*Entry)(stream, rest...);
    timed.end(kind, cost);
  }
};

constexpr std::size_t index_of(std::string_view name) {
  std::size_t index = 0;
  while (kernel_names[index] != name) ++index;
  return index;
}

constexpr KernelTable all_timed = {
#define POOLGRAD_KERNEL(name) \
  .name = &TimedKernel<&KernelTable::name, index_of(#name), decltype(KernelTable::name)>::call,
    POOLGRAD_KERNELS(POOLGRAD_KERNEL) POOLGRAD_CPU_KERNELS(POOLGRAD_KERNEL)
#undef POOLGRAD_KERNEL
};

}  // namespace

KernelProfile::KernelProfile() {
  if (taken.exchange(true)) throw ValueError("[profile] another profile is being recorded");
  const std::lock_guard lock(calls_mutex);
  recorded.clear();
}

KernelProfile::~KernelProfile() { taken = false; }

std::vector<KernelCall> KernelProfile::calls() const {
  const std::lock_guard lock(calls_mutex);
  return recorded;
}

const KernelTable* timed_kernels() { return taken.load(std::memory_order_relaxed) ? &all_timed : nullptr; }

}  // namespace poolgrad::kernels
