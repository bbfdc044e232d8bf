#include "parallel/nccl.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <source_location>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"
#include "parallel/collectives.h"
#include "parallel/nccl_library.h"

namespace poolgrad::parallel {

using attention::Communicator, attention::Message, attention::Transfer;

namespace {

/// A stream owned by the object.
class NcclStream {
 public:
  explicit NcclStream(int device)
      : driver(make_cuda_driver(device)),
        stream{{DeviceType::cuda, static_cast<std::uint8_t>(device)}, driver->stream_create()} {}
  ~NcclStream() {
    try {
      allocator_for(stream.device).stream_destroyed(stream);
      driver->stream_destroy(stream.id);
    } catch (const Error&) {  // the device is lost
    }
  }
  NcclStream(const NcclStream&) = delete;
  NcclStream& operator=(const NcclStream&) = delete;

  const std::unique_ptr<CudaDriver> driver;
  const Stream stream;
};

/// A rank's NCCL communicator and its stream, until the first failure.
class NcclRank {
 public:
  NcclRank(std::shared_ptr<Communicator> ranks, Device device, const NcclOptions& options, const NcclLibrary& library)
      : ranks_(std::move(ranks)), nccl_(library), options_(options), own_(device.index) {
    const NcclLibrary::UniqueId id = meet();
    call("ncclCommInitRank", [&] { return nccl_.CommInitRank(&handle_, ranks_->size(), id, ranks_->rank()); });
  }
  ~NcclRank() {
    if (handle_ == nullptr) return;
    try {
      check();
      hear();
      if (std::uncaught_exceptions() > 0) throw Error("[exchange] given up");
      call("ncclCommDestroy", [&] { return nccl_.CommDestroy(handle_); });  // waits for the other ranks
    } catch (const Error& error) {
      stop(error.what());
    }
  }
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  Communicator& ranks() const { return *ranks_; }
  Device device() const { return stream_.device; }
  DeviceMemory& memory() const { return allocator_for(stream_.device).memory(); }
  void check() const {
    if (!failure_.empty()) throw Error(failure_);
  }

  /// Queues both messages together after the work of `stream`. Returns the event that marks their end.
  EventId exchange(Stream stream, int to, Message out, int from, Message in) {
    allocator_for(stream.device).order(stream_, stream);
    const auto by = std::source_location::current();
    if (out.bytes > 0) memory().touch(out.data, static_cast<std::size_t>(out.bytes), stream_, by, Access::reads);
    if (in.bytes > 0) memory().touch(in.data, static_cast<std::size_t>(in.bytes), stream_, by, Access::writes);
    void* const on = reinterpret_cast<void*>(stream_.id);
    call("ncclGroupStart", [&] { return nccl_.GroupStart(); });
    std::exception_ptr error;
    const auto part = [&](const char* name, const auto& made) {
      try {
        call(name, made);
      } catch (const Error&) {
        if (!error) error = std::current_exception();
      }
    };
    if (out.bytes > 0)
      part("ncclSend", [&] {
        return nccl_.Send(out.data, static_cast<std::size_t>(out.bytes), NcclLibrary::bytes_type, to, handle_, on);
      });
    if (in.bytes > 0)
      part("ncclRecv", [&] {
        return nccl_.Recv(in.data, static_cast<std::size_t>(in.bytes), NcclLibrary::bytes_type, from, handle_, on);
      });
    part("ncclGroupEnd", [&] { return nccl_.GroupEnd(); });  // required even after an error: a group is open
    if (error) std::rethrow_exception(error);
    return memory().record_event(stream_);
  }

  /// Returns once the event has finished, and consumes it.
  void await(EventId end, int to, int from) {
    using namespace std::chrono;
    const auto began = steady_clock::now();
    auto heard = began;
    for (int looks = 0; !memory().event_finished(end); ++looks) {
      NcclLibrary::Result state = NcclLibrary::success;
      call("ncclCommGetAsyncError", [&] { return nccl_.CommGetAsyncError(handle_, &state); });
      if (state != NcclLibrary::in_progress) require(state, "an exchange of NCCL");
      const auto now = steady_clock::now();
      if (now - heard > milliseconds(1)) hear(), heard = now;
      if (options_.timeout > 0 && duration<double>(now - began).count() > options_.timeout)
        throw Error(fmt::format("[exchange] rank {} has waited {:.3g} s for bytes to rank {} and from rank {}",
                                ranks_->rank(), options_.timeout, to, from));
      if (looks < 200)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(microseconds(20));
    }
  }

  /// Aborts NCCL on this rank alone. On return no pending exchange uses memory any more.
  void stop(const std::string& why) noexcept {
    if (!failure_.empty()) return;
    failure_ = why;
    try {
      own_.driver->with_current([&] { nccl_.CommAbort(handle_); });
      memory().synchronize(memory().record_event(stream_));
    } catch (const Error&) {  // the device is lost
    }
  }

 private:
  void require(NcclLibrary::Result result, const char* what) const {
    if (result == NcclLibrary::success) return;
    throw Error(fmt::format("[nccl] {} failed on rank {}: {}", what, ranks_->rank(), nccl_.GetErrorString(result)));
  }
  template <class Call>
  void call(const char* name, const Call& made) const {
    NcclLibrary::Result result = NcclLibrary::success;
    own_.driver->with_current([&] { result = made(); });
    require(result, name);
  }
  /// Throws if a rank has failed; any use of the communicator reports it.
  void hear() { ranks_->start(current_stream(cpu), ranks_->rank(), {}, ranks_->rank(), {})->wait(); }

  /// Returns the id from rank 0 once all ranks have the same NCCL version and a GPU of their own. NCCL itself would
  /// report less, or hang.
  NcclLibrary::UniqueId meet() {
    int version = 0;
    call("ncclGetVersion", [&] { return nccl_.GetVersion(&version); });
    NcclLibrary::UniqueId id{};
    if (ranks_->rank() == 0) call("ncclGetUniqueId", [&] { return nccl_.GetUniqueId(&id); });
    const std::vector<std::string> versions = all_gather(*ranks_, fmt::format("{}", version)),
                                   gpus = all_gather(*ranks_, own_.driver->identity()),
                                   ids = all_gather(*ranks_, std::string(id.bytes, sizeof id.bytes));
    for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
      if (versions[rank] != versions[0])
        throw Error(fmt::format("[nccl] ranks have different versions of NCCL: {} on rank 0, and {} on rank {}",
                                versions[0], versions[rank], rank));
      for (std::size_t other = 0; other < rank; ++other)
        if (!gpus[rank].empty() && gpus[other] == gpus[rank])
          throw Error(fmt::format("[nccl] ranks {} and {} have one GPU ({}): NCCL needs one for each rank", other, rank,
                                  gpus[rank]));
    }
    ids[0].copy(id.bytes, sizeof id.bytes);
    return id;
  }

  const std::shared_ptr<Communicator> ranks_;
  const NcclLibrary& nccl_;
  const NcclOptions options_;
  const NcclStream own_;
  const Stream stream_ = own_.stream;
  NcclLibrary::Handle handle_ = nullptr;
  std::string failure_;
};

class NcclExchange final : public Transfer {
 public:
  NcclExchange(std::shared_ptr<NcclRank> own, Stream stream, int to, Message out, int from, Message in)
      : own_(std::move(own)), to_(to), from_(from), sent_(out.bytes), expected_(in.bytes) {
    constexpr std::int64_t one = sizeof(std::int64_t);
    own_->check();
    sizes_ = own_->ranks().start(current_stream(cpu), to, {&sent_, one}, from, {&comes_, one});
    if (out.bytes == 0 && in.bytes == 0) return;
    try {
      end_ = own_->exchange(stream, to, out, from, in);
    } catch (const std::exception& error) {
      own_->stop(error.what());
      throw;
    }
  }
  ~NcclExchange() override {
    if (end_ == 0) return;
    try {
      if (own_->memory().event_finished(end_)) return;
      own_->stop(fmt::format("[exchange] rank {} gave up an exchange", own_->ranks().rank()));
      own_->memory().discard_event(end_);
    } catch (const Error&) {  // the device is lost
    }
  }
  void wait() override {
    if (waited_) return;
    try {
      own_->check();
      sizes_->wait();
      if (comes_ != expected_)
        throw Error(fmt::format("[exchange] rank {} sends {} bytes to rank {}, which expects {}", from_, comes_,
                                own_->ranks().rank(), expected_));
      if (end_ != 0) own_->await(end_, to_, from_);
    } catch (const std::exception& error) {
      own_->stop(error.what());
      throw;
    }
    end_ = 0;
    waited_ = true;
  }

 private:
  std::shared_ptr<NcclRank> own_;
  int to_, from_;
  std::int64_t sent_, expected_, comes_ = -1;
  std::unique_ptr<Transfer> sizes_;  // declared after the sizes it uses, so destroyed first
  EventId end_ = 0;
  bool waited_ = false;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<Communicator> ranks, std::shared_ptr<NcclRank> own)
      : ranks_(std::move(ranks)), own_(std::move(own)) {}
  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  std::unique_ptr<Transfer> start(Stream stream, int to, Message out, int from, Message in) override {
    if (!stream.device.is_cuda()) return ranks_->start(stream, to, out, from, in);
    if (stream.device != own_->device())
      throw DeviceError(fmt::format("[nccl] rank {} exchanges memory of {}, not of {}", rank(),
                                    to_string(own_->device()), to_string(stream.device)));
    if ((to == rank() && from != rank() && out.bytes > 0) || (from == rank() && to != rank() && in.bytes > 0))
      throw ValueError(
          fmt::format("[nccl] rank {} must receive a message to itself in the exchange that sends it", rank()));
    return std::make_unique<NcclExchange>(own_, stream, to, out, from, in);
  }

 private:
  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<NcclRank> own_;
};

}  // namespace

std::shared_ptr<Communicator> nccl_communicator(std::shared_ptr<Communicator> ranks, Device device,
                                                const NcclOptions& options, const NcclLibrary& library) {
  if (!device.is_cuda()) throw DeviceError("[nccl] is for GPUs, not for " + to_string(device));
  if (!(options.timeout >= 0))
    throw ValueError(fmt::format("[nccl] timeout must be 0 s or more, but is {}", options.timeout));
  auto own = std::make_shared<NcclRank>(ranks, device, options, library);
  return std::make_shared<NcclCommunicator>(std::move(ranks), std::move(own));
}

std::shared_ptr<Communicator> nccl_communicator(std::shared_ptr<Communicator> ranks, Device device,
                                                const NcclOptions& options) {
  if (device.is_cuda()) make_cuda_driver(device.index);  // reports a missing GPU before a missing NCCL
  static const NcclLibrary library = open_nccl("libnccl.so.2");
  return nccl_communicator(std::move(ranks), device, options, library);
}

}  // namespace poolgrad::parallel
