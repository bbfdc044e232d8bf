// Collective operations on several ranks, built on the messages of a Communicator. Every rank must make the same calls
// in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/ring/communicator.h"
#include "tensor/tensor.h"

namespace poolgrad::parallel {

/// Returns a communicator of the ranks `members` of `all`, numbered in this order; this rank must be a member. It
/// shares the message channel of `all`, so all ranks must mix the messages of both in one order.
std::shared_ptr<attention::Communicator> group_of(const std::shared_ptr<attention::Communicator>& all,
                                                  std::vector<int> members);

/// Starts to send `own` to every other rank and to receive from rank r into `from_others[r]`. Ignores this rank's
/// entry.
std::vector<std::unique_ptr<attention::Transfer>> start_all_gather(attention::Communicator& ranks, Stream stream,
                                                                   attention::Message own,
                                                                   const std::vector<attention::Message>& from_others);

/// Returns the text of every rank, on every rank.
std::vector<std::string> all_gather(attention::Communicator& ranks, const std::string& own);

/// Replaces a row-major tensor by its sum over R ranks. Rank r receives the r-th part of all, adds in rank order, and
/// sends the sum to all. All ranks get the same bits. A rank sends 2 (R - 1) / R of the tensor and holds it twice
/// meanwhile.
class SumOverRanks {
 public:
  /// Starts to send the parts. The tensor is in use until finish() returns.
  SumOverRanks(std::shared_ptr<attention::Communicator> ranks, Tensor tensor);
  /// Waits for this rank's part of all, adds it up, and starts to send the sum.
  void add();
  /// Call after add(). Returns when the tensor holds the sum.
  void finish();

 private:
  std::int64_t begin_of(int part) const { return tensor_.numel() * part / ranks_->size(); }
  attention::Message part(int rank) const;

  std::shared_ptr<attention::Communicator> ranks_;
  Tensor tensor_, received_;  // received_: every rank's copy of this rank's part
  std::vector<std::unique_ptr<attention::Transfer>> transfers_;
};

}  // namespace poolgrad::parallel
