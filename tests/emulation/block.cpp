#include "tests/emulation/block.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "tests/emulation/device.h"
#include "tests/emulation/fiber.h"
#include "tests/emulation/launch_log.h"
#include "tests/emulation/random_order.h"
#include "tests/emulation/shared_memory.h"

namespace poolgrad::emulation {

thread_local Coordinates here;

namespace {

enum class State : std::uint8_t { not_begun, ready, at_barrier, at_collective, done };

struct Thread {
  State state = State::not_begun;
  Fiber* fiber = nullptr;  // holds the stack while the thread waits
  const char* waits_for = "__syncthreads";
  Where where;
};

constexpr const char* different_numbers = "warps of a warpgroup have begun different numbers of products";

struct Warp {
  int arrived = 0;      // lanes that wait for the collective
  bool orders = false;  // the collective is __syncwarp
  Join join = nullptr;
  std::uint32_t passed = 0;        // collectives so far
  std::uint32_t ordered = 0;       // ... of them __syncwarp
  LaneValue values[2][warp_size];  // of this collective and the previous one, which lanes may still read
  std::uint64_t order[2];          // tokens, see wait()
};

class Scheduler {
 public:
  void run(std::string_view op, const kernels::LaunchShape& shape, std::uint64_t seed,
           const std::function<void()>& kernel, std::int64_t most_shared) {
    const Unobserved emulation;
    op_ = op;
    most_shared_ = most_shared;
    kernel_ = &kernel;
    shape_ = shape;
    random_.state = seed;
    const auto size = [](const kernels::Extent& e) {
      return Index3{static_cast<unsigned>(e.x), static_cast<unsigned>(e.y), static_cast<unsigned>(e.z)};
    };
    here.block_size = size(shape.block);
    here.grid_size = size(shape.grid);
    coordinates_.clear();
    for (unsigned z = 0; z < here.block_size.z; ++z)
      for (unsigned y = 0; y < here.block_size.y; ++y)
        for (unsigned x = 0; x < here.block_size.x; ++x) coordinates_.push_back({x, y, z});
    const auto blocks = static_cast<std::uint64_t>(shape.grid.x * shape.grid.y * shape.grid.z);
    Order order(blocks, random_);
    struct Grid {  // ordered after this thread's earlier work and before its later work
      explicit Grid(Scheduler& of) : scheduler(of) { happens_before(&scheduler.grid_begins_); }
      ~Grid() { happens_after(&scheduler.grid_ends_); }
      Scheduler& scheduler;
    } grid(*this);
    for (std::uint64_t b = 0; b < blocks; ++b) run_block(static_cast<std::int64_t>(order.next()));
  }

  SharedMemory& shared() { return shared_; }
  Moment now() const { return {current(), barriers_, warps_[current_ / warp_size].ordered}; }

  void barrier(Where where) { wait(State::at_barrier, "__syncthreads", where); }

  const LaneValue* collective(const char* name, const void* value, std::size_t size, Where where, bool orders,
                              Join join = nullptr) {
    const LaneValue* const values = give(name, value, size, where, orders, join);
    wait(State::at_collective, name, where);
    return values;
  }
  const LaneValue* give(const char* name, const void* value, std::size_t size, Where where, bool orders, Join join) {
    const Unobserved emulation;
    if (threads_.size() % warp_size != 0)
      fail(std::string(name) + " at " + place_of(where) + " in a block of " + std::to_string(threads_.size()) +
           " threads, which is not a multiple of 32");
    Warp& warp = warps_[current_ / warp_size];
    LaneValue* const values = warp.values[warp.passed % 2];
    std::memcpy(values[current_ % warp_size].bytes, value, size);
    warp.orders = orders;
    warp.join = join;
    ++warp.arrived;
    return values;
  }

  [[noreturn]] void refuse_access(const char* verb, const void* address, std::size_t bytes, std::size_t multiple) {
    const Unobserved emulation;
    std::ostringstream what;
    what << "thread " << current_ << " " << verb << " " << bytes << " bytes at " << address
         << ", which is not a multiple of " << multiple;
    fail(what.str());
  }

  /// Body of every fiber: runs the threads that have not started, one after another.
  static void fiber_body();

  [[noreturn]] void fail(const std::string& what) const {
    throw CudaError("[" + std::string(op_) + "] " + what + " (block " + std::to_string(block_) + ")");
  }

 private:
  std::int16_t current() const { return static_cast<std::int16_t>(current_); }

  void run_block(std::int64_t number) {
    block_ = number;
    const kernels::Extent& grid = shape_.grid;
    here.block = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
                  static_cast<unsigned>(number / (grid.x * grid.y))};
    const auto count = static_cast<std::size_t>(shape_.block.x * shape_.block.y * shape_.block.z);
    threads_.assign(count, {});
    warps_.resize((count + warp_size - 1) / warp_size);
    for (Warp& warp : warps_) warp.arrived = 0, warp.passed = 0, warp.ordered = 0;
    shared_.begin_block(count, shape_.shared_bytes, most_shared_);
    barriers_ = 0;
    begun_ = finished_ = 0;
    ready_.clear();
    failure_ = nullptr;
    order_.emplace(count, random_);
    while (finished_ < count) {
      const bool may_begin = begun_ < count;
      if (!ready_.empty() && (!may_begin || random_.below(4) != 0)) {
        std::swap(ready_[random_.below(ready_.size())], ready_.back());
        const std::size_t thread = ready_.back();
        ready_.pop_back();
        make_current(thread);
        threads_[thread].state = State::ready;
        enter(threads_[thread].fiber);
      } else if (may_begin) {
        if (idle_.empty()) {
          fibers_.push_back(std::make_unique<Fiber>(&fiber_body, &place_));
          idle_.push_back(fibers_.back().get());
        }
        enter(idle_.back());
      } else {
        release_barrier();
      }
      if (failure_) return abandon();
    }
    if (!shared_.warpgroups_agree()) fail(different_numbers);
  }

  void enter(Fiber* fiber) {
    fiber_ = fiber;
    if (!idle_.empty() && idle_.back() == fiber) idle_.pop_back();
    fiber->enter();
  }

  void make_current(std::size_t thread) {
    current_ = thread;
    here.thread = coordinates_[thread];
    activity.block = block_;
    activity.thread = static_cast<std::int64_t>(thread);
  }

  // These two run on the stack of a thread that starts or ends.
  bool begin_next() {
    const Unobserved emulation;
    if (begun_ == threads_.size() || failure_) return false;
    ++begun_;
    const std::size_t thread = order_->next();
    make_current(thread);
    threads_[thread].state = State::ready;
    return true;
  }
  void end_current(const std::exception_ptr& failure) {
    const Unobserved emulation;
    if (failure) failure_ = failure;
    threads_[current_].state = State::done;
    ++finished_;
  }
  void be_idle(Fiber* fiber) {
    const Unobserved emulation;
    idle_.push_back(fiber);
  }

  // Runs on the thread's stack and returns once the thread is ready again.
  void wait(State state, const char* what, const Where& where) {
    // A released thread may reach the next barrier while others still leave this one; so tokens alternate.
    Warp& warp = warps_[current_ / warp_size];
    void* const token = state == State::at_collective ? &warp.order[warp.passed % 2] : &order_of_block_[barriers_ % 2];
    happens_before(token);
    happens_before(&grid_ends_);  // for threads that never return
    {
      const Unobserved emulation;
      threads_[current_] = {state, fiber_, what, where};
      if (state == State::at_collective && warp.arrived == warp_size) release_warp(current_ / warp_size);
    }
    fiber_->leave();
    happens_after(token);
  }

  void release_warp(std::size_t number) {
    Warp& warp = warps_[number];
    const std::size_t first = number * warp_size;
    for (std::size_t i = first; i < first + warp_size; ++i) {
      if (same_place(threads_[i].where, threads_[first].where)) continue;
      fail("lanes of a warp are at different collectives: thread " + std::to_string(first) + " at " +
           threads_[first].waits_for + " of " + place_of(threads_[first].where) + ", thread " + std::to_string(i) +
           " at " + threads_[i].waits_for + " of " + place_of(threads_[i].where));
    }
    if (warp.join) warp.join(warp.values[warp.passed % 2]);
    warp.arrived = 0;
    warp.ordered += warp.orders;
    ++warp.passed;
    for (std::size_t i = first; i < first + warp_size; ++i) ready_.push_back(i);
  }

  // No thread can continue: all wait at one barrier, or the kernel is wrong.
  void release_barrier() {
    const auto waits = [](const Thread& thread) { return thread.state != State::done; };
    const auto first = std::find_if(threads_.begin(), threads_.end(), waits);
    const auto other = std::find_if(threads_.begin(), threads_.end(), [&](const Thread& thread) {
      return thread.state != first->state || !same_place(thread.where, first->where);
    });
    if (other == threads_.end() && shared_.warpgroups_agree()) {
      ++barriers_;  // a thread that waits for its warp has all lanes with it and would be ready
      for (std::size_t i = 0; i < threads_.size(); ++i) ready_.push_back(i);
      return;
    }
    const auto describe_wait = [&](const auto& thread) {
      const std::string name = "thread " + std::to_string(thread - threads_.begin());
      if (thread->state == State::done) return name + " has returned";
      return name + " waits at " + thread->waits_for + " of " + place_of(thread->where);
    };
    try {
      if (other == threads_.end()) fail(different_numbers);
      fail(describe_wait(first) + ", but " + describe_wait(other));
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  // The block has failed; drops the stacks of its threads without unwinding.
  void abandon() {
    idle_.clear();
    fibers_.clear();
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  std::string op_;
  const std::function<void()>* kernel_ = nullptr;
  kernels::LaunchShape shape_;
  std::vector<Index3> coordinates_;  // of the threads of a block
  Random random_;
  Place place_{};  // resume point of the scheduler
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* fiber_ = nullptr;
  std::exception_ptr failure_;
  // State of the current block.
  std::int64_t block_ = 0;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  SharedMemory shared_{[this](const std::string& what) { fail(what); }};
  std::int64_t most_shared_ = 0;
  std::uint32_t barriers_ = 0;
  std::size_t begun_ = 0, finished_ = 0, current_ = 0;
  std::vector<std::size_t> ready_;
  std::optional<Order> order_;
  // Ordering tokens of the kernel.
  std::uint64_t grid_begins_ = 0, grid_ends_ = 0, order_of_block_[2] = {};
};

/// The scheduler of this host thread. A static object may wait for a device after thread-local variables are destroyed;
/// a kernel that runs then creates a new one.
thread_local Scheduler* scheduler = nullptr;
struct EndOfThread {
  ~EndOfThread() {
    const Unobserved emulation;  // threads of a failed kernel have not published their end
    delete std::exchange(scheduler, nullptr);
  }
};

void Scheduler::fiber_body() {
  Scheduler& self = *scheduler;
  Fiber* const own = self.fiber_;
  own->arrived();
  while (true) {
    while (self.begin_next()) {
      happens_after(&self.grid_begins_);
      std::exception_ptr failure;
      try {
        (*self.kernel_)();
        self.shared_.end_thread(self.now());
      } catch (...) {
        failure = std::current_exception();
      }
      happens_before(&self.grid_ends_);
      self.end_current(failure);
#if defined(__SANITIZE_THREAD__)
      break;
#endif
    }
    self.be_idle(own);
    own->leave();
  }
}

Scheduler& running() {
  if (!scheduler) throw CudaError("[emulation] barriers, collectives and shared memory are for kernels");
  return *scheduler;
}

}  // namespace

void run_grid(std::string_view op, const kernels::LaunchShape& shape, std::uint64_t seed,
              const std::function<void()>& kernel, std::int64_t most_shared) {
  [[maybe_unused]] static thread_local const EndOfThread end;
  if (!scheduler) scheduler = new Scheduler;
  note_launch(op);
  scheduler->run(op, shape, seed, kernel, most_shared);
}

void block_barrier(Where where) { running().barrier(where); }
void warp_barrier(Where where) { running().collective("__syncwarp", &where, 0, where, /*orders=*/true); }
const LaneValue* exchange(const char* collective, const void* value, std::size_t size, Where where, Join join) {
  return running().collective(collective, value, size, where, /*orders=*/false, join);
}
int lane() { return static_cast<int>(here.thread.x % warp_size); }

SharedArray& shared_array(const char* name, std::size_t element, std::int64_t count, Where where) {
  return running().shared().declared(name, element, count, where);
}
SharedArray& dynamic_shared_array(const char* name, std::size_t element, Where where) {
  return running().shared().dynamic(name, element, where);
}
void check_shared_read(const SharedArray& array, std::int64_t index, Where where, ReadFor who) {
  running().shared().read(running().now(), array, index, where, who);
}
void check_shared_write(const SharedArray& array, std::int64_t index, Where where) {
  running().shared().write(running().now(), array, index, where);
}
void copy_async(const SharedArray& array, std::int64_t index, const void* from, std::size_t bytes, Where where) {
  running().shared().copy(running().now(), array, index, from, bytes, where);
}
void commit_copies() { running().shared().commit_copies(running().now()); }
void wait_for_copies(std::int64_t pending) { running().shared().wait_for_copies(running().now(), pending); }
void fence_for_products() { running().shared().fence_for_products(running().now()); }
void begin_products() { running().shared().begin_products(running().now()); }
void read_for_product(const SharedArray& array, std::int64_t index, Where where) {
  running().shared().read_for_product(running().now(), array, index, where);
}
float* sums_of_product(float* registers, std::size_t count, bool adds, Where where) {
  return running().shared().sums_of_product(running().now(), registers, count, adds, where);
}
void commit_products() { running().shared().commit_products(running().now()); }
void wait_for_products(std::int64_t pending) { running().shared().wait_for_products(running().now(), pending); }
void refuse_product(const std::string& what, Where where) {
  running().fail("a product at " + place_of(where) + " " + what);
}

void refuse_access(const char* verb, const void* address, std::size_t bytes, std::size_t multiple) {
  running().refuse_access(verb, address, bytes, multiple);
}

}  // namespace poolgrad::emulation
