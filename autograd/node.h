// The tape: one Node per differentiable operator that was run while gradients were wanted. Nodes point to the nodes
// that made their inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

class Node;

/// Where a gradient goes: output `index` of the node that made an input, or a leaf (an AccumulateGrad node); null if
/// none is wanted.
struct Edge {
  std::shared_ptr<Node> node;
  int index = 0;
};

using Gradients = std::vector<Tensor>;

/// What a backward function is given: the gradients of the outputs, and which gradients are wanted.
class BackwardCall {
 public:
  BackwardCall(const Node& node, Gradients gradients) : node_(node), gradients_(std::move(gradients)) {}

  /// Gradient of output i; undefined if that output did not contribute.
  const Tensor& gradient(int i = 0) const { return gradients_[static_cast<std::size_t>(i)]; }
  /// True if somebody wants the gradient of input i.
  bool needs(int i) const;

 private:
  const Node& node_;
  Gradients gradients_;
};

/// Returns one gradient per input, in order; undefined where there is none. With create_graph grad mode is on while it
/// runs, so it must then be written with differentiable operators; otherwise it may call fused kernels: `if
/// (grad_enabled()) ... else ...`.
using BackwardFunction = std::function<Gradients(const BackwardCall&)>;

class Node : public std::enable_shared_from_this<Node> {
 public:
  Node(std::string name, std::vector<Edge> edges, std::vector<Shape> input_shapes, BackwardFunction backward);
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& name() const { return name_; }
  const std::vector<Edge>& edges() const { return edges_; }
  int output_count() const { return output_count_; }
  /// Later operators have larger numbers; the engine runs the largest ready one first, which fixes the order of every
  /// sum.
  std::uint64_t sequence() const { return sequence_; }

  /// Runs the backward function. Throws Error if it was released ("the graph was freed by an earlier backward; pass
  /// retain_graph").
  virtual Gradients run(Gradients gradients);
  /// Forgets the backward function and with it every saved tensor.
  virtual void release();

  /// Called with the gradients of the outputs before run(); may replace them.
  void add_hook(std::function<void(Gradients&)> hook) { hooks_.push_back(std::move(hook)); }

 protected:
  friend class Engine;
  friend class Recorder;
  std::string name_;
  std::vector<Edge> edges_;
  std::vector<Shape> input_shapes_;
  BackwardFunction backward_;
  std::vector<std::function<void(Gradients&)>> hooks_;
  std::uint64_t sequence_;
  int output_count_ = 1;
};

/// Nodes alive in the process: a training loop that keeps losses shows here.
std::int64_t live_node_count();

}  // namespace poolgrad
