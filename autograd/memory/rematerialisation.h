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

#include "allocator/caching_allocator.h"
#include "autograd/engine/saved_tensor.h"

namespace poolgrad {

/// What computing costs, by a model of the device rather than by a clock, so that the same program always drops the
/// same tensors.
struct ComputePrices {
  double bytes_per_nanosecond = 8;
  double flops_per_nanosecond = 40;

  static ComputePrices of(Device device);
};

/// Since the policy was made.
struct RematerialisationStatistics {
  std::uint64_t saved = 0, saved_bytes = 0;                     // storages that a recipe leads to
  std::uint64_t dropped = 0, dropped_bytes = 0;                 // times, and what that freed
  std::uint64_t recomputed = 0;                                 // operators that were run again
  double recorded_nanoseconds = 0, recomputed_nanoseconds = 0;  // by ComputePrices
  std::uint64_t held_bytes = 0;                                 // now: what could be dropped if nobody uses it
};

class Rematerialisation : public SavedTensorPolicy {
 public:
  /// A result that costs less than `drop_below` nanoseconds a byte to compute again, from what is kept, is not kept at
  /// all; the others wait for reclaim(). 0: nothing is dropped unasked.
  explicit Rematerialisation(double drop_below = 0.0, std::optional<ComputePrices> prices = {});
  ~Rematerialisation() override;

  std::shared_ptr<NodeNote> recorded(const RecordedCall& call) override;
  std::unique_ptr<PackedTensor> pack(const Tensor& tensor, const SavedUse& use) override;

  /// Drops what costs least for each byte to compute again, the oldest first (the backward needs it last), when it is
  /// asked to; what somebody uses at the moment stays. Outlives the policy as long as a graph needs it.
  std::shared_ptr<ReclaimClient> client() const;
  RematerialisationStatistics statistics() const;

 private:
  class Results;
  std::shared_ptr<Results> results_;
};

}  // namespace poolgrad
