// Saved tensors that may be dropped and computed again, one by one: what `selective` checkpointing and the memory
// budget stand on (Kirisame et al. 2021, "Dynamic Tensor Rematerialization").
//
// While a Rematerialisation is alive, every operator that is recorded on its thread leaves its recipe, and what nodes
// keep of its results can be dropped: the recipe, run on the operator's inputs (computed again in turn where they were
// dropped), brings it back bit for bit. What no recipe leads to (inputs of the model, parameters, statistics of norms)
// is kept as it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "allocator/caching_allocator.h"
#include "autograd/engine/saved_tensor.h"

namespace poolgrad {

/// What computing costs, by a model of the device rather than by a clock, so that the same program always drops the
/// same tensors.
struct ComputePrices {
  double bytes_per_nanosecond = 8;
  double flops_per_nanosecond = 40;
  double offloaded_bytes_per_nanosecond = 1.5;  // written to a file, and read back

  static ComputePrices of(Device device);
};

/// Since the policy was made.
struct RematerialisationStatistics {
  std::uint64_t saved = 0, saved_bytes = 0;                     // storages that can be dropped
  std::uint64_t dropped = 0, dropped_bytes = 0;                 // times, and what that freed
  std::uint64_t recomputed = 0;                                 // operators that were run again
  std::uint64_t offloaded = 0, offloaded_bytes = 0;             // written to the file
  std::uint64_t loaded = 0;                                     // read back
  double recorded_nanoseconds = 0, recomputed_nanoseconds = 0;  // by ComputePrices
  std::uint64_t held_bytes = 0;                                 // now: what could be dropped if nobody uses it
};

struct RematerialisationOptions {
  /// A result that costs less than this, in nanoseconds a byte, to compute again from what is kept, is not kept at all.
  /// 0: nothing is dropped unasked.
  double drop_below = 0.0;
  /// A folder for a file; empty: none. What is dropped is then written there where reading it back is cheaper than
  /// computing it again, and what no recipe leads to can be dropped too. Where the file cannot take more, what has a
  /// recipe is dropped without it. On simulated devices only places in the file are taken.
  std::string offload_folder = {};
  /// Everything that is kept goes to the file as soon as it is saved.
  bool offload_all = false;
  /// Only what is on this device is dropped.
  std::optional<Device> device = {};
  std::optional<ComputePrices> prices = {};
};

class Rematerialisation : public SavedTensorPolicy {
 public:
  /// Throws FileError where there can be no file in the folder.
  explicit Rematerialisation(const RematerialisationOptions& options = {});
  ~Rematerialisation() override;

  std::shared_ptr<NodeNote> recorded(const RecordedCall& call) override;
  std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse& use) override;
  std::shared_ptr<SavedTensorKeeper> keeper() override;

  /// Drops what costs least for each byte to compute again, the oldest first (the backward needs it last), when it is
  /// asked to; what somebody uses at the moment stays. Outlives the policy as long as a graph needs it.
  std::shared_ptr<ReclaimClient> client() const;
  RematerialisationStatistics statistics() const;
  /// Why the file took no more; empty where it did.
  std::string offload_failure() const;

 private:
  class Results;
  std::shared_ptr<Results> results_;
};

}  // namespace poolgrad
