// How a node keeps what its backward needs. This is the one seam where a tensor can be kept, recomputed or offloaded:
// checkpointing and the memory budget plug in here and nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "tensor/tensor.h"

namespace poolgrad {

/// A kept memory in whatever form the policy in force chose.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  /// The tensor, with the same bits as when it was packed. Asked by every node that kept a part of it.
  virtual Tensor unpack() = 0;
};

/// What a policy is told of the first node that keeps a tensor or a view of it.
struct SavedUse {
  std::string operation;  // the node's name
  int output = -1;        // which of the node's outputs the tensor is; -1 for an input, or neither
  bool is_leaf = false;   // a leaf that requires a gradient, such as a parameter: it lives on whatever is done here
};

/// Decides what becomes of the tensors that nodes keep which are recorded on this thread while it is alive. Policies
/// nest: the innermost decides alone, and what it leaves as it is no outer one is asked about. What is kept is memory:
/// tensors that share a storage, at the same version, are packed as one, however many nodes and views there are.
class SavedTensorPolicy {
 public:
  SavedTensorPolicy();
  virtual ~SavedTensorPolicy();
  SavedTensorPolicy(const SavedTensorPolicy&) = delete;
  SavedTensorPolicy& operator=(const SavedTensorPolicy&) = delete;
  /// Called by record() for each storage that the node keeps and no node kept before; `tensor` (n) is all of it.
  /// Returns nullptr to keep the tensor itself.
  virtual std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse& use) = 0;

 private:
  friend class SavedTensor;
  struct Kept;
  /// Of a storage; empty where it is new. Forgets now and then what no node keeps any more.
  std::weak_ptr<Kept>& entry_of(const Storage* storage);

  SavedTensorPolicy* previous_;
  std::size_t most_kept_ = 64;
  std::unordered_map<const Storage*, std::weak_ptr<Kept>> kept_;
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
  /// both versions if the tensor was written in place since, packed or not.
  Tensor unpack() const;

  /// For record(): the policy in force, if there is one, is given what was saved on this thread since the last call.
  static void pack_all(const std::string& operation);

 private:
  struct State;
  static std::shared_ptr<State> keep(const Tensor& tensor, int output_index);
  std::shared_ptr<State> state_;
};

}  // namespace poolgrad
