// Checkpointing: saves only a function's inputs for its backward pass, and recomputes the rest (Chen et al. 2016). The
// backward pass walks the graph of the first call. A second run only supplies the tensors that its nodes saved, so
// captured parameters, hooks, second derivatives and grad() work as without a checkpoint.
//
//   Tensor y = checkpoint([&](const Tensor& x) { return block(x); }, x);
#pragma once

#include <functional>
#include <vector>

#include "allocator/memory_scope.h"
#include "autograd/engine/saved_tensor.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Returns function(inputs). The first backward pass that needs a saved tensor runs the function again, up to the last
/// needed tensor, with the same random numbers, memory tags, grad mode and input bits. Inputs may be undefined or of
/// any dtype. The SavedTensorPolicy in force saves them, so checkpoints nest. Under a MemoryBudget, results and
/// recomputed tensors can be dropped and recomputed like all others. With grad mode off, only calls the function.
///
/// Captured objects are used in their state at the time of the run, and must live as long as the graph. The graph owns
/// a leaf that was captured by value. Such a leaf is never freed while its own .grad() leads to the graph (backward()
/// with create_graph): capture by reference, make it an input, or drop that gradient.
///
/// Rethrows the errors of the function. The backward pass throws Error if the second run has other operations, shapes,
/// dtypes or counts of random numbers. It also throws Error if an input or a captured tensor was written in place
/// since, or if a captured leaf was replaced. Recomputed tensors are freed with the nodes that saved them, at the
/// latest at the end of the outermost pass. A function must not swallow unknown exceptions.
std::vector<Tensor> checkpoint(const Definition& function, const std::vector<Tensor>& inputs, CallSite = {});
Tensor checkpoint(const std::function<Tensor(const Tensor&)>& function, const Tensor& input, CallSite = {});

/// The same for part of an operator that the caller records: the policy in force does not see the function as an
/// operator.
std::vector<Tensor> checkpoint_part(const Definition& function, const std::vector<Tensor>& inputs);

/// While alive, checkpointed functions of this thread throw "[checkpoint] the function cannot be run again: <reason>"
/// in first and second runs, because the tensors that they read are temporary. Guards nest.
class ForbidRecompute {
 public:
  explicit ForbidRecompute(const char* reason);
  ~ForbidRecompute();
  ForbidRecompute(const ForbidRecompute&) = delete;
  ForbidRecompute& operator=(const ForbidRecompute&) = delete;

  /// Throws Error if a guard is alive and grad mode is on. Operators that run functions again call it.
  static void check(const char* op);

 private:
  const char* previous_;
};

}  // namespace poolgrad
