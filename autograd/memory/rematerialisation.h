// Saved tensors that can be dropped and recomputed one by one, for `selective` checkpointing and the memory budget
// (Kirisame et al. 2021, "Dynamic Tensor Rematerialization").
//
// While a Rematerialisation is alive, every operator recorded on its thread leaves its recipe, and its saved results
// can be dropped. The recipe restores a result bit for bit from the operator's inputs, which are recomputed first if
// they were dropped. Tensors without a recipe (inputs of the model, parameters, statistics of norms) are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "allocator/caching_allocator.h"
#include "autograd/engine/saved_tensor.h"

namespace poolgrad {

/// Statistics since the policy was made.
struct RematerialisationStatistics {
  std::uint64_t saved = 0, saved_bytes = 0;                     // storages that can be dropped
  std::uint64_t dropped = 0, dropped_bytes = 0;                 // drops, and the bytes that they freed
  std::uint64_t recomputed = 0;                                 // operators
  std::uint64_t offloaded = 0, offloaded_bytes = 0;             // written to the file
  std::uint64_t loaded = 0;                                     // read back
  double recorded_nanoseconds = 0, recomputed_nanoseconds = 0;  // by a model of the device, not by a clock
  std::uint64_t held_bytes = 0;                                 // now: droppable unless in use
};

struct RematerialisationOptions {
  /// Results that cost less than this, in nanoseconds a byte, to recompute from kept tensors are dropped at once. 0:
  /// results are dropped on demand only.
  double drop_below = 0.0;
  /// A folder for a file; empty: none. Dropped tensors are written there if reading them back is cheaper than
  /// recomputing them. Tensors without a recipe can be dropped too. If the file takes no more, only tensors with a
  /// recipe are dropped. Simulated devices only take places in the file.
  std::string offload_folder = {};
  /// Moves each saved tensor to the file at once.
  bool offload_all = false;
  /// Drops only tensors on this device.
  std::optional<Device> device = {};
  /// Speed of the file, for each way, in bytes a nanosecond.
  double file_speed = 1.5;
};

class Rematerialisation : public SavedTensorPolicy {
 public:
  /// Throws FileError if no file can be created in the folder.
  explicit Rematerialisation(const RematerialisationOptions& options = {});
  ~Rematerialisation() override;

  std::shared_ptr<NodeNote> recorded(const RecordedCall& call) override;
  std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse& use) override;
  std::shared_ptr<SavedTensorKeeper> keeper() override;

  /// Returns the client through which the pool drops tensors: those cheapest to recompute for each byte first, then the
  /// oldest, which the backward pass needs last. Tensors in use stay. Outlives the policy as long as a graph needs it.
  std::shared_ptr<ReclaimClient> client() const;
  RematerialisationStatistics statistics() const;
  /// Returns why the file took no more; empty if it did not fail.
  std::string offload_failure() const;

 private:
  class Results;
  std::shared_ptr<Results> results_;
};

}  // namespace poolgrad
