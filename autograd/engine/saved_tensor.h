// How a node keeps what its backward needs. This is the one seam where a tensor can be kept, recomputed or offloaded:
// checkpointing and the memory budget plug in here and nowhere else.
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

/// A kept memory in whatever form the policy in force chose.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  /// The tensor, with the same bits as when it was packed. Asked by every node that kept a part of it.
  virtual Tensor unpack() = 0;
};

/// An operator as a function of its inputs alone: the same inputs and outputs as those of record().
using Definition = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// How to compute an operator's outputs again, bit for bit, with grad mode off: whatever random numbers it uses it
/// knows by their key, and it asks no generator.
struct Recipe {
  Definition compute = {};
  std::function<double()> flops = {};  // where they are more than a few for each byte read and written

  explicit operator bool() const { return compute != nullptr; }
};

/// An operator as record() shows it to a policy, before it asks about the saved tensors of the node.
struct RecordedCall {
  const std::string& operation;
  const std::vector<Tensor>& inputs;
  const std::vector<Tensor>& outputs;
  const Recipe& recipe;
  double flops = 0;  // of the recipe; pack_all() finds them
};

/// Entries by storage. Others keep an entry alive; dead entries are dropped now and then. T has a weak_ptr `storage`
/// and that storage's `version`.
template <class T>
class StorageIndex {
 public:
  /// nullptr where nothing is known of the storage at this version.
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

/// Describes to a policy the first node that keeps a tensor or a view of it.
struct SavedUse {
  std::string operation;  // the node's name
  int output = -1;        // which of the node's outputs the tensor is; -1 for an input, or neither
  bool is_leaf = false;   // a leaf that requires a gradient, such as a parameter: it lives on whatever is done here
};

/// Keeps what functions that are run again supply to the graph of their first run: on any thread, and for as long as
/// that graph needs it.
class SavedTensorKeeper {
 public:
  virtual ~SavedTensorKeeper() = default;
  /// As in SavedTensorPolicy, for an operator that a recomputation records.
  virtual std::shared_ptr<NodeNote> recorded_again(const RecordedCall& call) = 0;
  virtual std::unique_ptr<PackedTensor> pack_again(const Tensor& tensor) = 0;
};

/// Thread-local hook that decides how saved tensors are stored, for nodes that are recorded while it is alive. Policies
/// nest: only the innermost is consulted, even if it declines; they end in any order. A policy packs memory: tensors
/// that share a storage, at the same version, are packed once, for any number of nodes and views.
class SavedTensorPolicy {
 public:
  SavedTensorPolicy();
  virtual ~SavedTensorPolicy();
  SavedTensorPolicy(const SavedTensorPolicy&) = delete;
  SavedTensorPolicy& operator=(const SavedTensorPolicy&) = delete;
  /// Called once for each recorded operator; the node carries the result as its note().
  virtual std::shared_ptr<NodeNote> recorded(const RecordedCall&) { return nullptr; }
  /// Called by record() for each storage that the node keeps and no node kept before; `tensor` (n) is all of it.
  /// Returns nullptr to keep the tensor itself.
  virtual std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse& use) = 0;

  /// Keeper of tensors that functions save when they first run under this policy; nullptr: the graph itself.
  virtual std::shared_ptr<SavedTensorKeeper> keeper() { return nullptr; }

  /// This thread's; nullptr where there is none.
  static SavedTensorPolicy* in_force();

 private:
  friend class SavedTensor;
  struct Kept;

  SavedTensorPolicy* previous_;
  StorageIndex<Kept> kept_;
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

  /// For record(): passes the call, and the tensors saved on this thread since the last one, to the policy in force, if
  /// there is one. Returns the node's note.
  static std::shared_ptr<NodeNote> pack_all(const RecordedCall& call);
  /// The FLOPs of all recipes that this thread has recorded under policies.
  static double flops_recorded();

 private:
  struct State;
  static std::shared_ptr<State> keep(const Tensor& tensor, int output_index);
  std::shared_ptr<State> state_;
};

}  // namespace poolgrad
