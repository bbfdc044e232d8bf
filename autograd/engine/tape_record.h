// The gradient record behind a Tensor: either a leaf with its accumulated gradient, or the output of a node.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "autograd/engine/gradient_sum.h"
#include "autograd/engine/node.h"
#include "tensor/grad_mode.h"

namespace poolgrad {

/// The hooks of a node or of a leaf. They run in the order of registration. A hook may add and remove hooks, also
/// itself. Any thread may call any function.
class Hooks {
 public:
  std::uint64_t add(Hook hook);
  void remove(std::uint64_t id);
  void run(Gradients& gradients) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Hook> hooks_;
  std::uint64_t next_ = 0;
};

class TapeRecord final : public GradRecord, public std::enable_shared_from_this<TapeRecord> {
 public:
  /// A leaf that does not require a gradient yet.
  TapeRecord() = default;
  /// Output `edge.index` of `edge.node`. For the node of a leaf: another tensor with its gradient in that leaf.
  explicit TapeRecord(Edge edge) : made_by_(std::move(edge)) {}

  bool requires_grad() const override { return requires_grad_ || !is_leaf(); }
  /// Throws Error if `value` is false on the output of an operator.
  void set_requires_grad(bool value) override;
  bool is_leaf() const override { return made_by_.node == nullptr; }
  std::string made_by() const override { return is_leaf() ? "" : made_by_.node->name(); }
  Tensor grad() const override;
  void set_grad(const Tensor& grad) override;
  void backward(const Tensor& self, const Tensor& gradient, bool retain_graph, bool create_graph) override;

  /// Returns the node that made the tensor. For a leaf that requires a gradient, returns its AccumulateGrad node, made
  /// at first use and kept alive only by the graphs that use it. Otherwise returns null.
  Edge edge();
  /// Called when the leaf changes dtype or device. Earlier graphs then throw, because their gradients no longer fit.
  void leave_graphs();
  /// Adds to the gradient of a leaf. Adopts the first one without a copy if it has no other owner. Adds later ones in
  /// place, or into a new tensor while grad mode is on. Throws Error if `node` belongs to a graph from before
  /// leave_graphs().
  void accumulate(Tensor gradient, const Node& node);
  HookHandle add_hook(std::function<Tensor(const Tensor&)> hook);
  /// Of leaves only.
  HookHandle add_post_accumulate_hook(std::function<void(const Tensor&)> hook);
  void run_post_accumulate_hooks();

 private:
  bool requires_grad_ = false;
  Edge made_by_;
  // For leaves only. Graphs on several threads may share a parameter.
  mutable std::recursive_mutex mutex_;  // accumulation may call edge() of the same leaf
  GradientSum grad_;
  std::weak_ptr<Node> accumulate_;
  std::shared_ptr<Hooks> leaf_hooks_, post_accumulate_hooks_;  // made at first use
};

/// Returns the record of `tensor`; nullptr without one.
TapeRecord* tape_record(const Tensor& tensor);

}  // namespace poolgrad
