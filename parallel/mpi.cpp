#include "parallel/mpi.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/memory/cuda_memory.h"
#include "allocator/memory_scope.h"
#include "kernels/elementwise.h"
#include "parallel/mpi_progress_engine.h"
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif

namespace poolgrad::parallel {

using attention::Message;

namespace {

std::atomic<bool> a_world_exists{false};

bool mpi_reads_gpus() {
#if defined(OPEN_MPI)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

/// Host copy of a GPU message while MPI uses it. Outgoing messages use pinned memory if available. Incoming ones use
/// pageable memory, because kernels::copy() pins on the way to the GPU.
class HostCopy {
 public:
  HostCopy(Stream stream, Message there, bool leaves) : stream_(stream), there_(there) {
    const MemoryScope scope("exchange", Category::comm);
    if (leaves) {
      pool_ = &pinned_allocator_for(stream.device), host_ = {stream.device, PinnedMemory::host_stream};
      const auto had = pool_->try_allocate({.bytes = size(), .alignment = page, .stream = host_});
      if (void* const* const block = std::get_if<void*>(&had)) data_ = *block;
    }
    if (data_ == nullptr) {
      pool_ = &allocator_for(cpu), host_ = current_stream(cpu);
      data_ = pool_->allocate(size(), page, host_);
    }
  }
  ~HostCopy() { pool_->deallocate(data_, size(), page, host_); }
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  Message message() const { return {data_, there_.bytes}; }
  /// Waits for the stream.
  void read() { copy(data_, there_.data); }
  void write() { copy(there_.data, data_); }

 private:
  static constexpr std::size_t page = PinnedMemory::page;
  std::size_t size() const { return static_cast<std::size_t>(there_.bytes); }
  void copy(void* to, const void* from) {
    for (std::size_t begin = 0; begin < size(); begin += page) {
      const auto bytes = static_cast<std::int64_t>(std::min(page, size() - begin));
      const auto part = [&](const void* data) {
        return View{const_cast<std::byte*>(static_cast<const std::byte*>(data)) + begin, DType::u8, 1, {bytes}, {1}};
      };
      kernels::copy(stream_, part(to), part(from));
    }
  }

  Stream stream_;
  Message there_;
  CachingAllocator* pool_ = nullptr;
  Stream host_;
  void* data_ = nullptr;
};

}  // namespace

struct MpiWorld::State {
  explicit State(const MpiOptions& options) : room(options) {}
  MpiProgressEngine room;
  bool reads_gpus = false, ends_mpi = false;
  bool told = false;  // run() has thrown on all ranks
  std::vector<MPI_Comm> groups;
};

class MpiWorld::Exchange final : public attention::Transfer {
 public:
  Exchange(std::shared_ptr<State> state, Stream stream, MpiExchange::End to, MpiExchange::End from)
      : state_(std::move(state)) {
    MpiProgressEngine& room = state_->room;
    if (stream.device.is_sim()) to.message.data = from.message.data = nullptr;
    if (stream.device.is_cuda() && state_->reads_gpus) {
      DeviceMemory& device = allocator_for(stream.device).memory();
      device.synchronize(device.record_event(stream));
    } else if (stream.device.is_cuda()) {
      const auto staged = [&](std::unique_ptr<HostCopy>& copy, Message& message, bool leaves) {
        if (message.bytes == 0) return;
        copy = std::make_unique<HostCopy>(stream, message, leaves);
        message = copy->message();
      };
      staged(out_, to.message, true), staged(in_, from.message, false);
      if (out_) out_->read();
    }
    exchange_ = std::make_shared<MpiExchange>(room.rank(), to, from, room.options().piece, room.generation());
    room.add(exchange_);
  }
  ~Exchange() override {
    if (waited_) return;
    try {
      state_->room.give_up(exchange_);
    } catch (const std::exception&) {  // MPI itself failed
      std::terminate();
    }
  }
  void wait() override {
    if (waited_) return;
    state_->room.wait(exchange_);
    waited_ = true;
    if (in_) in_->write();
    in_.reset(), out_.reset();
  }

 private:
  std::shared_ptr<State> state_;
  std::unique_ptr<HostCopy> out_, in_;
  std::shared_ptr<MpiExchange> exchange_;
  bool waited_ = false;
};

class MpiWorld::Rank final : public attention::Communicator {
 public:
  Rank(std::shared_ptr<State> state, MPI_Comm group) : state_(std::move(state)), group_(group) {
    state_->groups.push_back(group);
    MPI_Comm_set_errhandler(group, MPI_ERRORS_RETURN);
    MPI_Comm_rank(group, &rank_);
    int size = 0;
    MPI_Comm_size(group, &size);
    std::vector<int> numbers(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) numbers[static_cast<std::size_t>(i)] = i;
    world_.resize(numbers.size());
    MPI_Group own, all;
    MPI_Comm_group(group, &own);
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    check_mpi(MPI_Group_translate_ranks(own, size, numbers.data(), all, world_.data()), "MPI_Group_translate_ranks");
    MPI_Group_free(&own);
    MPI_Group_free(&all);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_.size()); }
  std::unique_ptr<attention::Transfer> start(Stream stream, int to, Message out, int from, Message in) override {
    for (const int peer : {to, from})
      if (peer < 0 || peer >= size())
        throw IndexError(fmt::format("[exchange] there is no rank {} among {}", peer, size()));
    state_->room.check();
    const auto end = [&](int peer, const Message& message) {
      return MpiExchange::End{group_, peer, world_[static_cast<std::size_t>(peer)], message};
    };
    return std::make_unique<Exchange>(state_, stream, end(to, out), end(from, in));
  }

 private:
  std::shared_ptr<State> state_;
  MPI_Comm group_;
  int rank_ = 0;
  std::vector<int> world_;  // world number of each rank of the group
};

MpiWorld::MpiWorld(const MpiOptions& asked) {
  const MpiOptions options = resolved(asked);
  int was_started = 0, was_ended = 0;
  MPI_Initialized(&was_started);
  MPI_Finalized(&was_ended);
  if (was_ended) throw Error("[mpi] MPI has been finalized in this process and cannot start again");
  if (a_world_exists.exchange(true)) throw Error("[mpi] there is an MpiWorld in this process already");
  try {
    int threads = MPI_THREAD_SERIALIZED;
    if (was_started)
      MPI_Query_thread(&threads);
    else
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &threads), "MPI_Init_thread");
    if (threads < MPI_THREAD_SERIALIZED)
      throw Error("[mpi] MPI was started for one thread only: MPI_Init_thread with MPI_THREAD_SERIALIZED");
    state_ = std::make_shared<State>(options);
    state_->ends_mpi = !was_started;
    state_->reads_gpus = options.cuda_aware.value_or(mpi_reads_gpus());
    MPI_Comm group;
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &group), "MPI_Comm_dup");
    all_ = std::make_shared<Rank>(state_, group);
  } catch (...) {
    a_world_exists = false;
    throw;
  }
}

MpiWorld::~MpiWorld() {
  if (std::uncaught_exceptions() > 0 && !state_->told)
    state_->room.fail(fmt::format("rank {} failed outside of run()", state_->room.rank()));
  if (state_->room.failed()) state_->room.end_all();
  state_->room.close();
  // A later communicator might reuse the id of a freed one and receive its stale messages.
  for (MPI_Comm& group : state_->groups)
    if (!state_->room.has_leftovers()) MPI_Comm_free(&group);
  if (state_->ends_mpi) MPI_Finalize();
  a_world_exists = false;
}

const std::shared_ptr<attention::Communicator>& MpiWorld::communicator() const { return all_; }

std::shared_ptr<attention::Communicator> MpiWorld::split(int color) {
  if (color < 0) throw ValueError(fmt::format("[mpi] a color must be at least 0, but is {}", color));
  state_->room.check();
  MPI_Comm group;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, color, all_->rank(), &group), "MPI_Comm_split");
  return std::make_shared<Rank>(state_, group);
}

void MpiWorld::run(const std::function<void()>& body) {
  MpiProgressEngine& room = state_->room;
  state_->told = false;
  std::exception_ptr own;
  const auto failed = [&](const std::string& reason) {
    own = std::current_exception();
    room.fail(fmt::format("rank {} failed{}", room.rank(), reason));
  };
  try {
    body();
  } catch (const RankFailure&) {  // all ranks know
  } catch (const std::exception& exception) {
    failed(fmt::format(": {}", exception.what()));
  } catch (...) {
    failed("");
  }
  const std::string failure = room.end();
  state_->told = own || !failure.empty();
  if (own) std::rethrow_exception(own);
  if (!failure.empty()) throw Error("[exchange] " + failure);
}

}  // namespace poolgrad::parallel
