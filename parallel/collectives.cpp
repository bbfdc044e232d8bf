#include "parallel/collectives.h"

#include <algorithm>
#include <array>
#include <utility>

#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "tensor/grad_mode.h"

namespace poolgrad::parallel {

using attention::Communicator, attention::Message, attention::Transfer;

namespace {

class Group final : public Communicator {
 public:
  Group(std::shared_ptr<Communicator> all, std::vector<int> members)
      : all_(std::move(all)),
        members_(std::move(members)),
        rank_(static_cast<int>(std::find(members_.begin(), members_.end(), all_->rank()) - members_.begin())) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::unique_ptr<Transfer> start(Stream stream, int to, Message out, int from, Message in) override {
    return all_->start(stream, number(to), out, number(from), in);
  }

 private:
  /// Returns the rank's number in `all`. A nonexistent rank gives -1, which `all` rejects.
  int number(int rank) const { return rank < 0 || rank >= size() ? -1 : members_[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<Communicator> all_;
  std::vector<int> members_;
  int rank_;
};

int beyond(const Communicator& ranks, int distance) { return (ranks.rank() + distance + ranks.size()) % ranks.size(); }

void wait_for(std::vector<std::unique_ptr<Transfer>>& transfers) {
  for (const auto& transfer : transfers) transfer->wait();
  transfers.clear();
}

}  // namespace

std::shared_ptr<Communicator> group_of(const std::shared_ptr<Communicator>& all, std::vector<int> members) {
  return std::make_shared<Group>(all, std::move(members));
}

std::vector<std::unique_ptr<Transfer>> start_all_gather(Communicator& ranks, Stream stream, Message own,
                                                        const std::vector<Message>& from_others) {
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int distance = 1; distance < ranks.size(); ++distance) {
    const int from = beyond(ranks, -distance);
    transfers.push_back(
        ranks.start(stream, beyond(ranks, distance), own, from, from_others[static_cast<std::size_t>(from)]));
  }
  return transfers;
}

std::vector<std::string> all_gather(Communicator& ranks, const std::string& own) {
  const auto count = static_cast<std::size_t>(ranks.size());
  std::vector<std::int64_t> lengths(count, std::ssize(own));
  std::vector<std::string> texts(count, own);
  const auto exchange = [&](const auto& message_of) {
    std::vector<Message> messages;
    for (std::size_t rank = 0; rank < count; ++rank) messages.push_back(message_of(rank));
    auto transfers =
        start_all_gather(ranks, current_stream(cpu), messages[static_cast<std::size_t>(ranks.rank())], messages);
    wait_for(transfers);
  };
  exchange([&](std::size_t rank) { return Message{&lengths[rank], sizeof(std::int64_t)}; });
  for (std::size_t rank = 0; rank < count; ++rank) texts[rank].resize(static_cast<std::size_t>(lengths[rank]));
  exchange([&](std::size_t rank) { return Message{texts[rank].data(), lengths[rank]}; });
  return texts;
}

SumOverRanks::SumOverRanks(std::shared_ptr<Communicator> ranks, Tensor tensor)
    : ranks_(std::move(ranks)), tensor_(std::move(tensor)) {
  const int size = ranks_->size(), own = ranks_->rank();
  if (size == 1) return;
  const MemoryScope scope("sum_over_ranks", Category::comm);
  const std::int64_t count = begin_of(own + 1) - begin_of(own);
  received_ = Tensor::empty({size, count}, tensor_.options());
  const Stream stream = current_stream(tensor_.device());
  const std::int64_t bytes = part(own).bytes;
  for (int distance = 1; distance < size; ++distance) {
    const int to = beyond(*ranks_, distance), from = beyond(*ranks_, -distance);
    auto* const place = static_cast<std::byte*>(received_.view().data) + from * bytes;
    transfers_.push_back(ranks_->start(stream, to, part(to), from, {place, bytes}));
  }
}

Message SumOverRanks::part(int rank) const {
  const auto width = static_cast<std::int64_t>(size_of(tensor_.dtype()));
  return {static_cast<std::byte*>(tensor_.view().data) + begin_of(rank) * width,
          (begin_of(rank + 1) - begin_of(rank)) * width};
}

void SumOverRanks::add() {
  const int size = ranks_->size(), own = ranks_->rank();
  if (size == 1) return;
  wait_for(transfers_);
  const NoGradGuard no_grad;
  const Stream stream = current_stream(tensor_.device());
  const std::int64_t count = begin_of(own + 1) - begin_of(own);
  const auto row = [&](int rank) { return received_.alias(sliced(received_.geometry(), 0, rank, rank + 1, 1)).view(); };
  View mine = row(own);
  mine.data = part(own).data;
  kernels::copy(stream, row(own), mine);
  Tensor exact;  // more than two half-type addends: the sum is rounded once
  if (size > 2 && is_half(tensor_.dtype()))
    exact = Tensor::empty({1, count}, {compute_dtype(tensor_.dtype()), tensor_.device()});
  for (int rank = 1; rank < size && count > 0; ++rank)
    if (exact.defined())
      kernels::add_gradient(stream, {.first = rank == 1},
                            std::array{kernels::UpdateOperands{row(0), row(rank), {exact.view()}}});
    else
      kernels::axpby(stream, row(0), 1.0, row(0), 1.0, row(rank));
  kernels::copy(stream, mine, row(0));
  received_ = {};
  std::vector<Message> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(part(rank));
  transfers_ = start_all_gather(*ranks_, stream, part(own), parts);
}

void SumOverRanks::finish() { wait_for(transfers_); }

}  // namespace poolgrad::parallel
