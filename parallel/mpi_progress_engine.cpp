#include "parallel/mpi_progress_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <tuple>
#include <utility>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"

namespace poolgrad::parallel {

namespace {

enum Tag : int { size_of_sender, size_of_receiver, payload, tags };

/// MPI guarantees tags up to 32767 only.
int tag_of(int generation, Tag tag) { return generation % 8192 * tags + tag; }

/// Waits a little longer each time for a peer that computes. While bytes flow it only yields, because MPI calls move
/// them.
class Pause {
 public:
  void operator()(bool flows) {
    if (flows || ++calls_ < 200)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(20 * (calls_ - 199), 500)));
  }

 private:
  int calls_ = 0;
};

}  // namespace

MpiOptions resolved(MpiOptions options) {
  if (!options.timeout) {
    const char* const text = std::getenv("POOLGRAD_MPI_TIMEOUT");
    options.timeout = text == nullptr ? 600 : number_in<double>(text);
    if (!options.timeout || !(*options.timeout >= 0))
      throw ValueError(
          fmt::format("[mpi] POOLGRAD_MPI_TIMEOUT must be a number of seconds, but is {}", printable(text)));
  }
  const auto refuse = [](const std::string& reason) { throw ValueError("[mpi] " + reason); };
  if (!(*options.timeout >= 0)) refuse(fmt::format("timeout must be 0 s or more, but is {}", *options.timeout));
  if (!(options.grace > 0)) refuse(fmt::format("grace must be more than 0 s, but is {}", options.grace));
  if (options.piece < 1 || options.piece > INT32_MAX)
    refuse(fmt::format("a piece must have 1 to 2147483647 bytes, but has {}", options.piece));
  return options;
}

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(fmt::format("[mpi] {} failed: {}", call, std::string(text, static_cast<std::size_t>(length))));
}

MpiExchange::MpiExchange(int own, const End& to, const End& from, std::int64_t piece, int generation)
    : to_(to.world), from_(from.world), own_(own), outgoing_{to.message.bytes}, incoming_{from.message.bytes} {
  const auto post = [&](const char* call, MPI_Request& request, const auto& start) {
    check_mpi(start(&request), call);
  };
  const auto pieces = [&](const attention::Message& message, const auto& start) {
    if (message.data == nullptr) return;
    for (std::int64_t begin = 0; begin < message.bytes; begin += piece)
      start(static_cast<std::byte*>(message.data) + begin, static_cast<int>(std::min(piece, message.bytes - begin)));
  };
  // Posts receives first, so that messages find their buffers.
  pieces(from.message, [&](void* data, int bytes) {
    post("MPI_Irecv", receives_.emplace_back(), [&](MPI_Request* request) {
      return MPI_Irecv(data, bytes, MPI_BYTE, from.rank, tag_of(generation, payload), from.group, request);
    });
  });
  for (const auto& [end, size, theirs, mine] : {std::tuple{&from, &incoming_, size_of_sender, size_of_receiver},
                                                {&to, &outgoing_, size_of_receiver, size_of_sender}}) {
    post("MPI_Irecv", size->request, [&, tag = theirs](MPI_Request* request) {
      return MPI_Irecv(&size->other, 1, MPI_INT64_T, end->rank, tag_of(generation, tag), end->group, request);
    });
    post("MPI_Isend", sends_.emplace_back(), [&, tag = mine](MPI_Request* request) {
      return MPI_Isend(&size->own, 1, MPI_INT64_T, end->rank, tag_of(generation, tag), end->group, request);
    });
  }
  pieces(to.message, [&](void* data, int bytes) {
    post("MPI_Isend", sends_.emplace_back(), [&](MPI_Request* request) {
      return MPI_Isend(data, bytes, MPI_BYTE, to.rank, tag_of(generation, payload), to.group, request);
    });
  });
}

bool MpiExchange::finished(std::vector<MPI_Request>& requests) {
  int all = 0;
  MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE);
  return all != 0;
}

/// Returns whether the peer has started its side and both sizes agree.
bool MpiExchange::agreed(Size& size, int sender, int receiver) {
  if (!size.arrived) {
    int arrived = 0;
    MPI_Test(&size.request, &arrived, MPI_STATUS_IGNORE);
    size.arrived = arrived != 0;
  }
  if (!size.arrived) return false;
  if (size.own == size.other) return true;
  fault_ = fmt::format("rank {} sends {} bytes to rank {}, which expects {}", sender,
                       sender == own_ ? size.own : size.other, receiver, receiver == own_ ? size.own : size.other);
  return false;
}

bool MpiExchange::done() {
  const bool comes = agreed(outgoing_, own_, to_);
  received_ = received_ || (agreed(incoming_, from_, own_) && finished(receives_));
  return comes && received_ && finished(sends_);
}

void MpiExchange::cancel_receiving() {
  for (Size* const size : {&outgoing_, &incoming_})
    if (!size->arrived) receives_.push_back(std::exchange(size->request, MPI_REQUEST_NULL));
  for (MPI_Request& request : receives_)
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
}

MpiProgressEngine::MpiProgressEngine(const MpiOptions& options) : options_(options), timeout_(options.timeout.value()) {
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &control_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
  int size = 0;
  MPI_Comm_rank(control_, &rank_);
  MPI_Comm_size(control_, &size);
  peers_.resize(static_cast<std::size_t>(size));
}

void MpiProgressEngine::close() {
  has_leftovers_ = has_leftovers_ || !open_.empty();
  open_.clear(), abandoned_.clear();
  MPI_Comm_free(&control_);
}

/// Sends a notice to every other rank separately, since any rank may be waiting.
void MpiProgressEngine::tell(Kind kind, const std::string& text) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    Notice& notice = notices_.emplace_back(static_cast<char>(kind) + text, MPI_REQUEST_NULL);
    check_mpi(MPI_Isend(notice.text.data(), static_cast<int>(notice.text.size()), MPI_CHAR, peer, generation_ % 32768,
                        control_, &notice.request),
              "MPI_Isend");
  }
}

void MpiProgressEngine::hear() {
  for (;;) {
    int is_there = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, generation_ % 32768, control_, &is_there, &status), "MPI_Iprobe");
    if (!is_there) return;
    int length = 0;
    MPI_Get_count(&status, MPI_CHAR, &length);
    std::string text(static_cast<std::size_t>(length), ' ');
    check_mpi(MPI_Recv(text.data(), length, MPI_CHAR, status.MPI_SOURCE, status.MPI_TAG, control_, MPI_STATUS_IGNORE),
              "MPI_Recv");
    Peer& peer = peers_[static_cast<std::size_t>(status.MPI_SOURCE)];
    const char kind = text.at(0);
    text.erase(0, 1);
    if (kind == quiet) {
      peer.quiet = true, peer.waits = text;
    } else if (kind == ended) {
      peer.ended = true, peer.ended_at = Clock::now();
    } else if (failure_.empty() || (kind == failure && !certain_)) {
      failure_ = text, certain_ = kind == failure;
    }
  }
}

/// Stops all exchanges. Messages in transfer complete, for which both sides must call MPI. Messages without a receiver
/// are abandoned.
void MpiProgressEngine::become_quiet() {
  if (std::exchange(quiet_, true)) return;
  has_leftovers_ = true;
  const auto began = Clock::now();
  const auto await = [&](const auto& is_over) {
    Pause pause;
    while (!std::ranges::all_of(open_, is_over)) {
      if (since(began) > options_.grace) end_all();
      hear();
      pause(true);
    }
  };
  for (const auto& exchange : open_) exchange->cancel_receiving();
  await([](const auto& exchange) { return exchange->done_receiving(); });
  tell(quiet, ended_           ? ""
              : waits_for_ < 0 ? fmt::format("rank {} computes", rank_)
                               : fmt::format("rank {} waits for rank {}", rank_, waits_for_));
  peer(rank_).quiet = true;
  await([&](const auto& exchange) { return exchange->done_sending() || peer(exchange->to()).quiet; });
  abandoned_.insert(abandoned_.end(), open_.begin(), open_.end());  // MPI may still read their sizes
  open_.clear();
}

void MpiProgressEngine::raise() {
  become_quiet();
  throw RankFailure("[exchange] " + failure_);
}

void MpiProgressEngine::check() {
  if (control_ == MPI_COMM_NULL) throw Error("[exchange] the MpiWorld of this communicator has ended");
  hear();
  if (failed()) raise();
}

void MpiProgressEngine::wait(const std::shared_ptr<MpiExchange>& exchange) {
  constexpr double late = 1;  // seconds for messages sent before a rank's end
  if (std::ranges::find(open_, exchange) == open_.end()) {
    check();
    throw Error("[exchange] the group has restarted since this exchange began");
  }
  const auto began = Clock::now();
  Pause pause;
  while (!exchange->done()) {
    hear();
    waits_for_ = exchange->waits_for();
    const double seconds = since(began);
    const Peer& other = peer(waits_for_);
    if (!failed() && !exchange->fault().empty())
      fail(exchange->fault());
    else if (!failed() && other.ended && !exchange->has_come() && seconds > late && since(other.ended_at) > late)
      fail(fmt::format("rank {} waits for rank {}, which has ended", rank_, waits_for_));
    else if (!failed() && timeout_ > 0 && seconds > timeout_)
      time_out(fmt::format("rank {} has waited {:.3g} s for rank {}", rank_, timeout_, waits_for_));
    if (failed()) raise();
    pause(exchange->flows());
  }
  waits_for_ = -1;
  std::erase(open_, exchange);
}

void MpiProgressEngine::give_up(const std::shared_ptr<MpiExchange>& exchange) {
  if (std::ranges::find(open_, exchange) == open_.end()) return;
  if (exchange->done()) {
    std::erase(open_, exchange);
    return;
  }
  hear();
  if (!failed()) {
    failure_ = fmt::format("rank {} gave up an exchange", rank_);
    tell(suspicion, failure_);  // run() reports the exception that caused it, if any
  }
  become_quiet();
}

void MpiProgressEngine::fail(const std::string& reason) {
  hear();
  if (!std::exchange(certain_, true)) failure_ = reason;
  tell(failure, failure_);
  become_quiet();
}

/// Asks all ranks for the rank that each waits for.
void MpiProgressEngine::time_out(const std::string& reason) {
  failure_ = reason;
  tell(suspicion, failure_);
  become_quiet();
  const auto asked = Clock::now();
  Pause pause;
  while (since(asked) < options_.grace && !every(&Peer::quiet)) hear(), pause(false);
  failure_ = reason + answers();
  certain_ = true;
  tell(failure, failure_);
}

bool MpiProgressEngine::every(bool Peer::*is) const {
  for (int other = 0; other < size(); ++other)
    if (other != rank_ && !(peers_[static_cast<std::size_t>(other)].*is)) return false;
  return true;
}

/// Returns for example "; rank 1 waits for rank 2; rank 3 does not answer".
std::string MpiProgressEngine::answers() const {
  std::string text;
  for (int other = 0; other < size(); ++other) {
    const Peer& peer = peers_[static_cast<std::size_t>(other)];
    if (other == rank_ || (peer.ended && peer.waits.empty())) continue;
    text += "; " + (peer.waits.empty() ? fmt::format("rank {} does not answer", other) : peer.waits);
  }
  return text;
}

void MpiProgressEngine::end_all() {
  const std::string said = answers();
  std::fputs(fmt::format("[mpi] rank {} ends all ranks: {}{}\n", rank_, failure_, failure_.ends_with(said) ? "" : said)
                 .c_str(),
             stderr);
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

std::string MpiProgressEngine::end() {
  if (failed()) become_quiet();
  ended_ = true;
  tell(ended, "");
  auto began = Clock::now();
  Pause pause;
  for (;;) {
    const bool knew = failed();
    hear();
    if (failed()) become_quiet();
    if (failed() && !knew) began = Clock::now();
    const auto sent = [](Notice& notice) {
      int is_sent = 0;
      MPI_Test(&notice.request, &is_sent, MPI_STATUS_IGNORE);
      return is_sent != 0;
    };
    std::erase_if(notices_, sent);
    // A rank reports a failure before its end, so once all ranks have ended, all know of it. A rank may hear of a
    // failure after its own end and become quiet later. Waiting for both leaves no message that a later
    // MpiProgressEngine might receive.
    if (every(&Peer::ended) && (!failed() || every(&Peer::quiet)) && notices_.empty()) break;
    const double limit = failed() ? options_.grace : timeout_;
    if (limit > 0 && since(began) > limit) {
      if (!failed()) failure_ = fmt::format("rank {} has waited {:.3g} s for the others to end", rank_, limit);
      end_all();
    }
    pause(false);
  }
  std::erase_if(abandoned_, [](const auto& exchange) { return exchange->done_sending(); });
  for (Peer& one : peers_) one = {};
  quiet_ = ended_ = certain_ = false, waits_for_ = -1, ++generation_;
  return std::exchange(failure_, {});
}

}  // namespace poolgrad::parallel
