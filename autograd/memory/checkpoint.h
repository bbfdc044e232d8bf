// Checkpointing: of what a function's backward needs, only its inputs are kept, and the rest is computed again (Chen et
// al. 2016). The graph that the function makes when it is called is the one that backward walks; running the function
// again only supplies the values that its nodes saved, so that captured parameters, hooks, second derivatives and
// grad() work as without.
//
//   Tensor y = checkpoint([&](const Tensor& x) { return block(x); }, x);
#pragma once

#include <functional>
#include <vector>

#include "allocator/memory_scope.h"
#include "autograd/engine/saved_tensor.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// function(inputs), run again by the first backward that needs something which its nodes saved, up to the last thing
/// that is needed; with the same random numbers, memory tags and grad mode, on the same bits. Inputs may be undefined
/// or of any dtype; they are given to the SavedTensorPolicy in force, so that checkpoints nest. Within a MemoryBudget
/// results, and what a second run supplies, can be dropped and computed again like everything else. What the function
/// captures is used as it then is, and must live as long as the graph; a leaf that it captured by value is held by the
/// graph, and never freed while its own .grad() leads there (backward() with create_graph): capture by reference, make
/// it an input, or drop that gradient. With grad mode off the function simply runs.
/// Throws what the function throws. Backward throws Error where the function, when it is run again, does other
/// operations, on other shapes or dtypes, or with other counts of random numbers, and where one of its inputs or a
/// tensor that it captured was written in place since, or a leaf that it captured is another tensor. What was
/// recomputed is let go with the nodes that saved it, at the latest when the outermost pass ends. A function must not
/// swallow exceptions that it does not know.
std::vector<Tensor> checkpoint(const Definition& function, const std::vector<Tensor>& inputs, CallSite = {});
Tensor checkpoint(const std::function<Tensor(const Tensor&)>& function, const Tensor& input, CallSite = {});

/// The same for part of an operator that the caller records: the policy in force is not told that the function is one.
std::vector<Tensor> checkpoint_part(const Definition& function, const std::vector<Tensor>& inputs);

/// While alive, functions of this thread that a backward pass would run again are refused, first runs and second
/// ("[checkpoint] the function cannot be run again: <reason>"): what they read is there for now only. Guards nest.
class NoSecondRunGuard {
 public:
  explicit NoSecondRunGuard(const char* reason);
  ~NoSecondRunGuard();
  NoSecondRunGuard(const NoSecondRunGuard&) = delete;
  NoSecondRunGuard& operator=(const NoSecondRunGuard&) = delete;

  /// Throws Error where one is alive and grad mode is on: for operators that run functions again.
  static void check(const char* op);

 private:
  const char* previous_;
};

}  // namespace poolgrad
