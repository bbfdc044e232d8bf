// What a training run found out.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "allocator/memory_scope.h"
#include "examples/support/ngram.h"

namespace poolgrad::examples {

struct StepRecord {
  std::int64_t step = 0;     // counted from 1
  double loss = 0;           // nats per byte, of this step's batch
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  double milliseconds = 0;  // forward, backward, update
  double tokens_per_second = 0;
  std::uint64_t live_bytes = 0;  // after the step
  std::uint64_t reserved_bytes = 0;
  std::uint64_t device_allocations = 0;  // since the step before
};

struct TrainResult {
  std::vector<StepRecord> steps;
  std::vector<std::pair<std::int64_t, double>> validations;  // step, nats per byte on a part of the held-out text
  double validation_loss = 0;                                // on all of it, or evenly spread windows of a short run
  std::int64_t validation_bytes = 0;                         // scored
  Baselines baselines;
  bool interrupted = false;
  std::string prompt, sample;

  std::int64_t files = 0, train_bytes = 0, held_out_bytes = 0;
  std::int64_t parameters = 0;
  double seconds = 0;  // the whole run
  double tokens_per_second = 0;
  std::uint64_t peak_live_bytes = 0, peak_reserved_bytes = 0;
  std::uint64_t allocation_hash = 0;
  std::array<std::uint64_t, category_count> bytes_by_category{};  // peaks
  double hit_rate = 0;
  std::vector<std::pair<std::string, std::string>> written;  // what, path
};

}  // namespace poolgrad::examples
