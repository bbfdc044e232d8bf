// The tape: one Node per differentiable operator that was run while gradients were wanted. Nodes point to the nodes
// that made their inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

class Node;
class NodeNote;  // saved_tensor.h

/// Where a gradient goes: output `index` of the node that made an input, or a leaf (an AccumulateGrad node); null if
/// none is wanted.
struct Edge {
  std::shared_ptr<Node> node;
  int index = 0;
};

using Gradients = std::vector<Tensor>;

/// Whether a tensor may be written over: no other tensor shares its memory, each element has its own place in it, and
/// no gradient flows through it.
inline bool is_reusable(const Tensor& tensor) {
  return tensor.is_sole_owner() && tensor.is_contiguous() && !tensor.requires_grad();
}

/// The argument of a backward function: the gradients of the outputs, and which gradients are wanted.
class BackwardCall {
 public:
  /// `wanted` has one flag per input of `node`; nullptr wants every input that has an edge.
  BackwardCall(const Node& node, Gradients gradients, const std::uint8_t* wanted = nullptr)
      : node_(node), gradients_(std::move(gradients)), wanted_(wanted) {}

  /// Gradient of output i; undefined if that output did not contribute.
  const Tensor& gradient(int i = 0) const { return gradients_[static_cast<std::size_t>(i)]; }
  /// The same, given away: the caller may become its sole owner.
  Tensor take_gradient(int i = 0) { return std::move(gradients_[static_cast<std::size_t>(i)]); }
  /// A tensor like gradient i to write another gradient into: gradient i's memory if no other tensor shares it, else
  /// new memory. For kernels that read each element before they write it, while grad mode is off.
  Tensor place_over_gradient(int i = 0) const;
  /// True if the gradient of input i is wanted.
  bool needs(int i) const;

 private:
  const Node& node_;
  Gradients gradients_;
  const std::uint8_t* wanted_;
};

/// Returns one gradient per input, in order; undefined where there is none. With create_graph grad mode is on while it
/// runs, so it must then be written with differentiable operators; otherwise it may call fused kernels: `if
/// (grad_enabled()) ... else ...`.
using BackwardFunction = std::function<Gradients(const BackwardCall&)>;

/// Shape, dtype and device of an operator's input; its gradient must have the same.
struct TensorMeta {
  Shape shape;
  DType dtype = DType::f32;
  Device device;
  bool defined = false;

  TensorMeta() = default;
  explicit TensorMeta(const Tensor& tensor);
  /// "(4, 8) f32 on cpu", or "undefined".
  std::string describe() const;
  bool matches(const Tensor& tensor) const;
};

/// Called with the gradients of a node's outputs before the node runs; may replace them.
using Hook = std::function<void(Gradients&)>;

class Hooks;  // of a node, or of a leaf

/// Result of register_hook() and Node::add_hook(). Its destructor does not remove the hook.
class HookHandle {
 public:
  HookHandle() = default;
  HookHandle(std::weak_ptr<Hooks> hooks, std::uint64_t id) : hooks_(std::move(hooks)), id_(id) {}
  /// Removes the hook and destroys its captures. Does nothing a second time, or after the tensor is gone.
  void remove();

 private:
  std::weak_ptr<Hooks> hooks_;
  std::uint64_t id_ = 0;
};

/// Owned by shared_ptr, through make(): whatever a node was keeping is destroyed iteratively, so that a chain of any
/// length dies without recursion.
class Node : public std::enable_shared_from_this<Node> {
 public:
  /// A node for an operator with `inputs`; an undefined input, or one that requires no gradient, gets a null edge.
  static std::shared_ptr<Node> make(std::string name, const std::vector<Tensor>& inputs, int output_count,
                                    BackwardFunction backward);
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Edge>& edges() const { return edges_; }
  const std::vector<TensorMeta>& inputs() const { return inputs_; }
  int output_count() const { return output_count_; }
  /// Later operators have larger numbers; the engine runs the largest ready one first, which fixes the order of every
  /// sum. Leaves are larger than every operator: a leaf's gradient is added as soon as it is complete.
  std::uint64_t sequence() const { return sequence_; }
  /// When the node was made: larger than that of every node it leads to.
  std::uint64_t made_at() const { return sequence_ & ~leaf_priority; }

  /// Runs the backward function and checks its results: one gradient per input, each like its input. Throws Error that
  /// names the operator.
  virtual Gradients run(BackwardCall& call);
  /// Forgets the backward function, with it every saved tensor, and the note; released() is then true.
  virtual void release();
  virtual bool released() const { return backward_ == nullptr; }

  /// The note of the policy that was in force when the node was made; nullptr without a policy.
  const std::shared_ptr<NodeNote>& note() const { return note_; }
  void set_note(std::shared_ptr<NodeNote> note) { note_ = std::move(note); }

  /// A hook that holds a tensor made by this node, or by a later one, keeps the graph alive until it is removed.
  HookHandle add_hook(Hook hook);
  void run_hooks(Gradients& gradients) const;

  /// The node whose backward runs on this thread (the innermost); nullptr outside.
  static Node* current();

 protected:
  static constexpr std::uint64_t leaf_priority = std::uint64_t{1} << 63;

  /// `priority` is 0 or leaf_priority.
  Node(std::string name, std::uint64_t priority);
  /// Takes ownership with the deleter that never recurses.
  static std::shared_ptr<Node> own(Node* node);

  /// nullptr until there is one. Those of a leaf's node are the leaf's, which outlives it.
  std::shared_ptr<Hooks> hooks_;

 private:
  struct Deleter;
  void check(const Gradients& gradients) const;

  std::string name_;
  std::source_location made_by_;  // the line of the program that called the operator
  std::vector<Edge> edges_;
  std::vector<TensorMeta> inputs_;
  BackwardFunction backward_;
  std::shared_ptr<NodeNote> note_;
  std::uint64_t sequence_;
  int output_count_ = 1;
  Node* next_doomed_ = nullptr;
};

/// Where the gradient of `tensor` goes; null if it requires none.
Edge gradient_edge(const Tensor& tensor);

/// Nodes alive in the process: a training loop that keeps losses shows here.
std::int64_t live_node_count();

}  // namespace poolgrad
