// What moves information between positions: attention, or anything else with this shape. Blocks take one from outside,
// so they know nothing of attention.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/module.h"

namespace poolgrad::nn {

/// What one mixer remembers of the positions it has seen, so that a sequence can be continued byte by byte.
struct SequenceState {
  std::int64_t length = 0;      // positions seen
  std::vector<Tensor> tensors;  // the mixer's own: keys and values
};

/// (B, T, width) -> (B, T, width).
class SequenceMixer : public Module {
 public:
  /// With a state, x holds the positions that follow the `state->length` ones seen before; the state is extended.
  virtual Tensor forward(const Tensor& x, SequenceState* state = nullptr) = 0;
};

}  // namespace poolgrad::nn
