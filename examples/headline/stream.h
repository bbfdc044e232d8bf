// Attention over a sequence that no memory holds: chunk by chunk, each made from a counter, attended, reduced to a
// checksum, and forgotten.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/pattern.h"
#include "examples/headline/row.h"

namespace poolgrad::examples {

struct StreamedWork {
  std::int64_t tokens = 0;  // of the whole sequence
  std::int64_t chunk = 4096;
  int ring = 1;  // chunks that attend to each other: as many as the longest segment covers
  std::int64_t heads = 8, head_dim = 64;
  std::vector<std::int64_t> segment_lengths, dilation_rates;
  attention::DilatedMode mode = attention::DilatedMode::longnet;
};

/// Computes blocks of ring * chunk tokens from the first one on, until all are done or bench.stream_seconds have
/// passed; then checks random rows against the definition in f64, with their keys made anew. The outcome's milliseconds
/// are those of one block; the remark has tokens, tokens per second, the worst error, and the time for all of them,
/// marked as an extrapolation.
Outcome stream(const StreamedWork& work, Bench& bench);

}  // namespace poolgrad::examples
