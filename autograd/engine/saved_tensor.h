// How a node keeps what its backward needs. This is the one seam where a tensor can be kept, recomputed or offloaded:
// checkpointing and the memory budget plug in here and nowhere else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tensor/tensor.h"

namespace poolgrad {

/// A kept tensor in whatever form the policy in force chose.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  /// The tensor, with the same bits as when it was packed.
  virtual Tensor unpack() = 0;
};

/// Decides what becomes of the tensors saved on this thread while it is alive. Policies nest: the innermost decides.
class SavedTensorPolicy {
 public:
  SavedTensorPolicy();
  virtual ~SavedTensorPolicy();
  SavedTensorPolicy(const SavedTensorPolicy&) = delete;
  SavedTensorPolicy& operator=(const SavedTensorPolicy&) = delete;
  /// Returns nullptr to keep the tensor itself.
  virtual std::unique_ptr<PackedTensor> pack(const Tensor& tensor) = 0;

 private:
  SavedTensorPolicy* previous_;
};

/// Keeps the data of a tensor and where its gradient goes, not the tensor: a graph that a leaf's .grad() leads to does
/// not keep that leaf alive.
class SavedTensor {
 public:
  SavedTensor() = default;
  /// Keeps an input of the operator (or any tensor that is not its output).
  explicit SavedTensor(const Tensor& tensor);
  /// Keeps output `index` of the operator, without the reference cycle node -> tensor -> node: unpack() connects it to
  /// the node again, for second derivatives.
  static SavedTensor output(const Tensor& tensor, int index = 0);

  bool defined() const { return state_ != nullptr; }
  /// A tensor with the data that was saved, whose gradient goes where that of the saved one went; undefined if that
  /// was. Call it inside the backward function: there it knows its operator. Throws Error naming operator, shape and
  /// both versions if the tensor was written in place since.
  Tensor unpack() const;

 private:
  struct State;
  static std::shared_ptr<State> keep(const Tensor& tensor, int output_index);
  std::shared_ptr<State> state_;
};

}  // namespace poolgrad
