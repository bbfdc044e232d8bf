// A training step that is recorded once and launched as a whole (CUDA graphs): the host then queues one thing a step,
// where it queued hundreds of kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "allocator/report/statistics.h"
#include "allocator/stream.h"

namespace poolgrad {

/// What the recorded work uses:
///   * Tensors that were there before are read and written where they are. They must outlive the graph; those that the
///     step itself lets go of are kept for it.
///   * Tensors that the step makes come from a pool of the graph's own, which nobody else gets memory of. Whoever still
///     has them, such as a loss or gradients, finds the last replay's values in them, also after the graph is gone.
/// What the host computes is as it was when the step was recorded, but for what is asked for anew before each replay:
/// the step counts and learning rates of optimisers, and what generators hand out, so that replays draw what as many
/// eager steps would. Reads by the host and copies from it are refused.
///
///   Graph graph(device);
///   graph.capture([&] {
///     loss = model.loss(batch);
///     loss.backward();
///     optimizer.step(nn::clip_scale(nn::gradient_norm_tensor(model.parameters()), 1.0));
///     optimizer.zero_grad();
///   });
///   while (next(batch)) graph.replay();  // batch.copy_from(...) between them
class Graph {
 public:
  /// Throws DeviceError for anything but a CUDA device.
  explicit Graph(Device device);
  /// Waits for its work.
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Calls `step` twice: once to be run, a step as any other, which also prepares what is made at first use; and once
  /// to be recorded, when nothing runs and no optimiser counts. What that call makes has its values after the first
  /// replay(). Work of this thread on the device's current stream is ordered before and after. What `step` throws is
  /// thrown on; nothing is recorded then, and all else is usable. A graph can record anew, which forgets what it has.
  void capture(const std::function<void()>& step);
  /// The first of these calls alone, and the second, which needs one before.
  void rehearse(const std::function<void()>& step);
  void record(const std::function<void()>& step);
  /// Queues the recorded work, behind that of the current stream and before whatever is queued there then. That stream
  /// may read the results until the graph is gone, and must outlive it. Throws Error where nothing is recorded.
  void replay();

  /// Its own, on which steps run.
  Stream stream() const;
  /// Of its own pool.
  Statistics statistics() const;

  /// For those whose kernels take a number that the host computes for each step: the graph that this thread records
  /// for; nullptr where it does not.
  static Graph* recording();
  /// Memory of the device, aligned to 16 bytes, that each replay fills with what `compute` writes, before the recorded
  /// work. All together at most 64 KiB. Throws ValueError.
  const void* value(std::size_t bytes, std::function<void(void*)> compute);
  /// Each replay calls it, in the order of these calls and of those of value().
  void before_replay(std::function<void()> action);

 private:
  void check_free() const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace poolgrad
