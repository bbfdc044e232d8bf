// The interface of the ranks that train one model together. parallel/training_ranks.h implements it over any
// communicator. A run on one rank has none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "autograd/operators/unary.h"
#include "tensor/tensor.h"

namespace poolgrad::nn {

/// A rank's share of a batch of sequences.
struct BatchShare {
  std::int64_t first_row = 0, rows = 0;  // the sequences [first_row, first_row + rows)
  kernels::PositionMap positions = {};   // the positions in each of them
};

/// Sums gradients over all ranks, in the order of the ranks, during a backward pass.
class GradientSums {
 public:
  GradientSums() = default;
  virtual ~GradientSums() = default;
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  /// Call it before so many backward passes, whose gradients are summed in the last. Drops the rest of a pass that
  /// threw.
  virtual void begin(std::int64_t passes) = 0;
  /// Call it after the last pass. Returns when every gradient is the sum. Throws Error if another rank failed or
  /// has other gradients.
  virtual void finish() = 0;
};

/// The communicator of one rank. All ranks make the same calls in the same order. Each call throws Error if another
/// rank failed.
class Ranks {
 public:
  Ranks() = default;
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Rank 0 prints and writes for all ranks.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns the share of rank `rank` in `rows` sequences of `length`. The shares of all ranks are disjoint and cover
  /// the batch. Throws ValueError if a rank would have nothing.
  virtual BatchShare share(std::int64_t rows, std::int64_t length) const = 0;

  /// Replaces each value by its sum over the ranks, in their order: the same bits on every rank.
  virtual void sum(std::span<double> values) = 0;
  /// Sums the gradients of the parameters as long as the result lives. The parameters must require gradients.
  virtual std::unique_ptr<GradientSums> sum_gradients(const std::vector<Tensor>& parameters) = 0;
  /// Copies tensor i of rank owners[i] to all other ranks.
  virtual void share_out(const std::vector<Tensor>& tensors, const std::vector<int>& owners) = 0;
  /// Copies the tensors of rank `from` to those of rank `to`. Only these two ranks call it.
  virtual void transfer(const std::vector<Tensor>& tensors, int from, int to) = 0;
  /// Throws ValueError on every rank if a value differs between ranks. It names the value, both texts, and the first
  /// rank that differs from rank 0.
  virtual void agree(const std::vector<std::pair<std::string, std::string>>& values) = 0;
};

/// Returns which rank updates each parameter if optimizer states are divided (ZeRO stage 1, Rajbhandari et al. 2020).
/// Whole parameters, the largest first, go to the rank that has the fewest elements. No rank has more elements than its
/// equal share plus the largest parameter.
std::vector<int> owners_of(const std::vector<Tensor>& parameters, int ranks);

}  // namespace poolgrad::nn
