// The tape: one Node for each recorded differentiable operator. Nodes point to the nodes that made their inputs.
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

/// The destination of a gradient: output `index` of the node that made an input, or a leaf (an AccumulateGrad node).
/// Null if no gradient is wanted.
struct Edge {
  std::shared_ptr<Node> node;
  int index = 0;
};

using Gradients = std::vector<Tensor>;

/// Returns whether a tensor may be overwritten: no other tensor shares its memory, no elements overlap, and it requires
/// no gradient.
inline bool is_reusable(const Tensor& tensor) {
  return tensor.is_sole_owner() && tensor.is_contiguous() && !tensor.requires_grad();
}

/// The gradients that an input has received so far in a pass; null before the first. `exact` is the sum of half types
/// in f32, as in GradientSum. `is_last`: no other operator adds to it.
struct RunningSum {
  Tensor* value = nullptr;
  Tensor* exact = nullptr;
  bool is_last = false;
};

/// The argument of a backward function: the gradients of the outputs, and which gradients are wanted.
class BackwardCall {
 public:
  using Sums = std::function<RunningSum(int)>;
  /// `wanted` has one flag per input of `node`; nullptr wants every input that has an edge.
  BackwardCall(const Node& node, Gradients gradients, const std::uint8_t* wanted = nullptr, Sums sums = {})
      : node_(node), gradients_(std::move(gradients)), wanted_(wanted), sums_(std::move(sums)) {}

  /// Gradient of output i; undefined if that output did not contribute.
  const Tensor& gradient(int i = 0) const { return gradients_[static_cast<std::size_t>(i)]; }
  /// Moves the gradient out: the caller may become its sole owner.
  Tensor take_gradient(int i = 0) { return std::move(gradients_[static_cast<std::size_t>(i)]); }
  /// Returns a tensor like gradient i for another gradient: its memory if no other tensor shares it, else new memory.
  /// For kernels that read each element before they write it, while grad mode is off.
  Tensor place_over_gradient(int i = 0) const;
  /// True if the gradient of input i is wanted.
  bool needs(int i) const;
  /// The sum that the gradient of input i is added to. A backward function may add to a part of it and return an
  /// undefined gradient.
  RunningSum sum(int i) const { return sums_ ? sums_(i) : RunningSum(); }

 private:
  const Node& node_;
  Gradients gradients_;
  const std::uint8_t* wanted_;
  Sums sums_;
};

/// Returns one gradient per input, in order; undefined means none. With create_graph, grad mode is on during the call,
/// which must use differentiable operators. Otherwise it may call fused kernels: `if (grad_enabled()) ... else ...`.
using BackwardFunction = std::function<Gradients(const BackwardCall&)>;

/// Shape, dtype and device of an operator's input. Its gradient must have the same.
struct TensorMeta {
  Shape shape;
  DType dtype = DType::f32;
  Device device;
  bool defined = false;

  TensorMeta() = default;
  explicit TensorMeta(const Tensor& tensor);
  /// Returns for example "(4, 8) f32 on cpu", or "undefined".
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

/// Created by make(), owned by shared_ptr. Destruction is iterative, so chains of any length need no recursion.
class Node : public std::enable_shared_from_this<Node> {
 public:
  /// Makes a node for an operator with `inputs`. An undefined input, or one that requires no gradient, gets a null
  /// edge.
  static std::shared_ptr<Node> make(std::string name, const std::vector<Tensor>& inputs, int output_count,
                                    BackwardFunction backward);
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Edge>& edges() const { return edges_; }
  const std::vector<TensorMeta>& inputs() const { return inputs_; }
  int output_count() const { return output_count_; }
  /// Later operators have larger numbers. The engine runs the ready node with the largest number first, which fixes the
  /// order of every sum. Leaves have larger numbers than all operators, so a gradient is added to its leaf as soon as
  /// it is complete.
  std::uint64_t sequence() const { return sequence_; }
  /// The creation order: larger than that of every node it leads to.
  std::uint64_t made_at() const { return sequence_ & ~leaf_priority; }

  /// Runs the backward function and checks its results: one gradient per input, with the metadata of the input. Throws
  /// Error with the name of the operator.
  virtual Gradients run(BackwardCall& call);
  /// Drops the backward function with its saved tensors, and the note. released() is then true.
  virtual void release();
  virtual bool released() const { return backward_ == nullptr; }

  /// Returns the note of the policy in force when the node was made; nullptr without a policy.
  const std::shared_ptr<NodeNote>& note() const { return note_; }
  void set_note(std::shared_ptr<NodeNote> note) { note_ = std::move(note); }

  /// A hook that holds a tensor of this node, or of a later one, keeps the graph alive until it is removed.
  HookHandle add_hook(Hook hook);
  void run_hooks(Gradients& gradients) const;

  /// Returns the innermost node with a running backward on this thread; nullptr outside.
  static Node* current();

 protected:
  static constexpr std::uint64_t leaf_priority = std::uint64_t{1} << 63;

  /// `priority` is 0 or leaf_priority.
  Node(std::string name, std::uint64_t priority);
  /// Takes ownership with the non-recursive deleter.
  static std::shared_ptr<Node> own(Node* node);

  /// nullptr until a hook is added. The node of a leaf shares the hooks of the leaf, which outlive it.
  std::shared_ptr<Hooks> hooks_;

 private:
  struct Deleter;
  void check(const Gradients& gradients) const;

  std::string name_;
  std::source_location made_by_;  // call site of the operator
  std::vector<Edge> edges_;
  std::vector<TensorMeta> inputs_;
  BackwardFunction backward_;
  std::shared_ptr<NodeNote> note_;
  std::uint64_t sequence_;
  int output_count_ = 1;
  Node* next_doomed_ = nullptr;
};

/// Returns the destination of the gradient of `tensor`; null if it requires none.
Edge gradient_edge(const Tensor& tensor);

/// Returns the number of live nodes in the process. It grows in a training loop that keeps losses.
std::int64_t live_node_count();

}  // namespace poolgrad
