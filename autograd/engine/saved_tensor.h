// Tensors that nodes save for backward. Only here can a tensor be kept, recomputed or offloaded: checkpoints and the
// memory budget are policies of this interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// A saved storage in the form that the policy chose.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  /// Returns the tensor with the bits of pack(). Every node that saved a part of it calls this.
  virtual Tensor unpack() = 0;
};

/// An operator as a function of its inputs only: the inputs and outputs of record().
using Definition = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Recomputes an operator's outputs bit for bit, with grad mode off. It knows the keys of its random numbers and takes
/// none from a generator.
struct Recipe {
  Definition compute = {};
  std::function<double()> flops = {};  // set if more than a few per byte read and written

  explicit operator bool() const { return compute != nullptr; }
};

/// An operator, passed by record() to a policy before the saved tensors of its node.
struct RecordedCall {
  const std::string& operation;
  const std::vector<Tensor>& inputs;
  const std::vector<Tensor>& outputs;
  const Recipe& recipe;
  double flops = 0;  // of the recipe; computed by pack_all()
};

/// Entries by storage. Does not own entries; drops dead ones from time to time. T has a weak_ptr `storage` and the
/// `version` of that storage.
template <class T>
class StorageIndex {
 public:
  /// Returns nullptr if no entry exists for the storage at this version.
  std::shared_ptr<T> find(const std::shared_ptr<Storage>& storage, std::uint64_t version) const {
    const auto place = known_.find(storage.get());
    std::shared_ptr<T> found = place == known_.end() ? nullptr : place->second.lock();
    return found != nullptr && found->storage.lock() == storage && found->version == version ? found : nullptr;
  }
  void add(const std::shared_ptr<Storage>& storage, const std::shared_ptr<T>& known) {
    if (known_.size() >= most_known_) {
      std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
      most_known_ = 64 + 2 * known_.size();
    }
    known_[storage.get()] = known;
  }

 private:
  std::size_t most_known_ = 64;
  std::unordered_map<const Storage*, std::weak_ptr<T>> known_;
};

/// A policy's note about a node. It lives until the node's graph is freed.
class NodeNote {
 public:
  virtual ~NodeNote() = default;
};

/// Describes the first node that saves a tensor or a view of it.
struct SavedUse {
  std::string operation;  // the node's name
  int output = -1;        // index of the tensor among the node's outputs; -1: not an output
  bool is_leaf = false;   // a leaf that requires a gradient, such as a parameter: it stays alive anyway
};

/// Keeps tensors that rerun functions supply to the graph of their first run, on any thread, as long as that graph
/// needs them.
class SavedTensorKeeper {
 public:
  virtual ~SavedTensorKeeper() = default;
  /// As in SavedTensorPolicy, for an operator recorded by a recomputation.
  virtual std::shared_ptr<NodeNote> recorded_again(const RecordedCall& call) = 0;
  virtual std::unique_ptr<PackedTensor> pack_again(const Tensor& tensor) = 0;
};

/// Thread-local hook that decides how saved tensors are stored, for nodes recorded while it is alive. Policies nest and
/// may end in any order. Only the innermost is consulted, even if it declines. A policy packs storages: tensors that
/// share a storage at the same version are packed once, for any number of nodes and views.
class SavedTensorPolicy {
 public:
  SavedTensorPolicy();
  virtual ~SavedTensorPolicy();
  SavedTensorPolicy(const SavedTensorPolicy&) = delete;
  SavedTensorPolicy& operator=(const SavedTensorPolicy&) = delete;
  /// Called once for each recorded operator. The node carries the result as its note().
  virtual std::shared_ptr<NodeNote> recorded(const RecordedCall&) { return nullptr; }
  /// Called by record() for each newly saved storage; `tensor` (n) is the whole storage. Returns nullptr to keep the
  /// tensor itself.
  virtual std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse& use) = 0;

  /// Returns the keeper of tensors saved by functions that first run under this policy; nullptr: the graph itself.
  virtual std::shared_ptr<SavedTensorKeeper> keeper() { return nullptr; }

  /// Returns this thread's policy; nullptr without one.
  static SavedTensorPolicy* in_force();

 private:
  friend class SavedTensor;
  struct Kept;

  SavedTensorPolicy* previous_;
  StorageIndex<Kept> kept_;
};

/// Keeps a tensor's data and the destination of its gradient, but not the tensor. So a graph reachable from a leaf's
/// .grad() does not keep that leaf alive.
class SavedTensor {
 public:
  SavedTensor() = default;
  /// Saves an input of the operator, or any tensor other than its outputs.
  explicit SavedTensor(const Tensor& tensor);
  /// Saves output `index` of the operator without a reference cycle from node to tensor to node. unpack() reconnects it
  /// to the node, for second derivatives.
  static SavedTensor output(const Tensor& tensor, int index = 0);

  bool defined() const { return state_ != nullptr; }
  /// Returns a tensor with the saved data and gradient destination; undefined if an undefined tensor was saved. Call it
  /// inside the backward function, where the operator is known. Throws Error with operator, shape and both versions if
  /// the tensor was written in place since, packed or not.
  Tensor unpack() const;

  /// For record(): passes the call, and the tensors saved on this thread since the last call, to the policy in force,
  /// if any. Returns the node's note.
  static std::shared_ptr<NodeNote> pack_all(const RecordedCall& call);
  /// Returns the FLOPs of all recipes recorded under policies on this thread.
  static double flops_recorded();

 private:
  struct State;
  static std::shared_ptr<State> keep(const Tensor& tensor, int output_index);
  std::shared_ptr<State> state_;
};

}  // namespace poolgrad
