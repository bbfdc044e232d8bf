// What several ranks do at once, of the messages of a Communicator. Every rank of it makes the same calls in the same
// order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/ring/communicator.h"
#include "tensor/tensor.h"

namespace poolgrad::parallel {

/// The ranks `members` of `all` as a communicator of their own, numbered in this order; this rank is one of them. The
/// messages of both go the same way, so all ranks must mix them in one order.
std::shared_ptr<attention::Communicator> group_of(const std::shared_ptr<attention::Communicator>& all,
                                                  std::vector<int> members);

/// Starts to send `own` to every other rank, which has `from_others` for it, an entry for each rank; that of this one
/// is passed over.
std::vector<std::unique_ptr<attention::Transfer>> start_all_gather(attention::Communicator& ranks, Stream stream,
                                                                   attention::Message own,
                                                                   const std::vector<attention::Message>& from_others);

/// The text of every rank, on every rank.
std::vector<std::string> all_gather(attention::Communicator& ranks, const std::string& own);

/// A row-major tensor becomes its sum over the ranks: rank r is sent the r-th part of all, adds it up in the order of
/// the ranks, so that every rank has the same bits, and sends the sum to all. A rank sends 2 (R - 1) / R of the tensor,
/// and holds it twice meanwhile.
class SumOverRanks {
 public:
  /// Starts to send the parts. The tensor is written to until finish() has returned.
  SumOverRanks(std::shared_ptr<attention::Communicator> ranks, Tensor tensor);
  /// Waits for this rank's part of all, adds it up, and starts to send the sum.
  void add();
  /// After add(): returns when the tensor is the sum.
  void finish();

 private:
  std::int64_t begin_of(int part) const { return tensor_.count() * part / ranks_->size(); }
  attention::Message part(int rank) const;

  std::shared_ptr<attention::Communicator> ranks_;
  Tensor tensor_, received_;  // the latter: this rank's part, of every rank
  std::vector<std::unique_ptr<attention::Transfer>> transfers_;
};

}  // namespace poolgrad::parallel
