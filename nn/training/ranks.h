// What a training run asks of the ranks that train one model together: parallel/training_ranks.h has them, over any
// communicator. A run by itself has none.
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

/// What a rank has of a batch of sequences.
struct BatchShare {
  std::int64_t first_row = 0, rows = 0;  // the sequences [first_row, first_row + rows)
  kernels::PositionMap positions = {};   // of each of them
};

/// Gradients that become their sums over all ranks, in the order of the ranks, while a backward pass goes on.
class GradientSums {
 public:
  GradientSums() = default;
  virtual ~GradientSums() = default;
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  /// Before a backward pass: what is accumulated from now on is summed. Drops what was left of one that threw.
  virtual void begin() = 0;
  /// After it: returns when every gradient is the sum. Throws Error where another rank failed, or has other gradients.
  virtual void finish() = 0;
};

/// One rank's end. All ranks make the same calls in the same order; each throws Error where another rank failed.
class Ranks {
 public:
  Ranks() = default;
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// Rank 0 speaks and writes for all.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// What rank `rank` has of `rows` sequences of `length`; the shares of all ranks are disjoint and the whole. Throws
  /// ValueError where a rank would have nothing.
  virtual BatchShare share(std::int64_t rows, std::int64_t length) const = 0;

  /// Each value becomes its sum over the ranks, in their order: the same bits everywhere.
  virtual void sum(std::span<double> values) = 0;
  /// The parameters, which require gradients, have the sums from now on, as long as the result lives.
  virtual std::unique_ptr<GradientSums> sum_gradients(const std::vector<Tensor>& parameters) = 0;
  /// Tensor i of rank owners[i] is copied over tensor i of all others.
  virtual void share_out(const std::vector<Tensor>& tensors, const std::vector<int>& owners) = 0;
  /// Copies the tensors of rank `from` over those of rank `to`; nobody else calls it.
  virtual void transfer(const std::vector<Tensor>& tensors, int from, int to) = 0;
  /// Throws ValueError on every rank, naming what it is, both values and the first rank that has another than rank 0.
  virtual void agree(const std::vector<std::pair<std::string, std::string>>& values) = 0;
};

/// Which rank updates each parameter where optimizer states are divided (ZeRO stage 1, Rajbhandari et al. 2020): whole
/// parameters, the largest first, each to the rank that has least. No rank has more elements than its equal share and
/// the largest parameter.
std::vector<int> owners_of(const std::vector<Tensor>& parameters, int ranks);

}  // namespace poolgrad::nn
