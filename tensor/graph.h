// A training step recorded once and launched as a whole (CUDA graphs). The host then queues one launch per step instead
// of hundreds of kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "allocator/report/statistics.h"
#include "allocator/stream.h"

namespace poolgrad {

/// Memory of the recorded work:
///   * Existing tensors are read and written in place. They must outlive the graph. The graph keeps tensors that the
///     step itself releases.
///   * Tensors made by the step come from the graph's private pool. Surviving handles, such as a loss or gradients,
///     show the values of the last replay, also after the graph is destroyed.
/// Host values are fixed at recording, except the step counts and learning rates of optimizers and the ranges of random
/// generators. Each replay updates those first, so it draws the same numbers as an eager step. A recorded step cannot
/// copy to or from the host.
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
  /// Throws DeviceError unless the device is a CUDA device.
  explicit Graph(Device device);
  /// Waits for its work.
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Calls `step` twice. The first call runs it as an ordinary step, which also initializes lazily created state. The
  /// second call records it: nothing runs, and optimizers do not count. Its tensors have values after the first
  /// replay(). Work on the device's current stream of this thread is ordered before and after. Exceptions of `step`
  /// propagate; then nothing is recorded and everything else stays usable. A new capture() discards the previous one.
  void capture(const std::function<void()>& step);
  /// The two calls of capture() separately; record() requires an earlier rehearse().
  void rehearse(const std::function<void()>& step);
  void record(const std::function<void()>& step);
  /// Queues the recorded work, ordered after the current stream's earlier work and before its later work. That stream
  /// may read the results until the graph is destroyed, and must outlive it. Throws Error if nothing is recorded.
  void replay();

  /// The graph's own stream, on which steps run.
  Stream stream() const;
  /// Statistics of the private pool.
  Statistics statistics() const;

  /// Returns the graph that this thread records for, or nullptr. For operators whose kernels take a host value per
  /// step.
  static Graph* recording();
  /// Returns device memory, aligned to 16 bytes, that each replay fills by `compute` before the recorded work. At most
  /// 64 KiB per graph. Throws ValueError.
  const void* value(std::size_t bytes, std::function<void(void*)> compute);
  /// Registers an action for each replay, in the order of these calls and those of value().
  void before_replay(std::function<void()> action);

 private:
  void check_free() const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace poolgrad
