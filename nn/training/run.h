// A training run from the first step to its report: lines, validation, stopping, checkpoint, sample, files.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "allocator/memory_scope.h"
#include "nn/training/trainer.h"

namespace poolgrad::nn {

struct RunOptions {
  std::int64_t report = 50;                          // steps between lines
  std::int64_t stop_after = 0;                       // save and stop after this step; 0: never
  std::int64_t sample = 300;                         // bytes of text to write at the end
  std::string save = {};                             // checkpoint to write at the end, and when stopped
  std::string json = {};                             // report to write
  std::string csv = {};                              // steps to write
  std::string config = "null";                       // JSON: "config" of the report
  bool quiet = false;                                // print nothing
  bool live = false;                                 // `out` is a terminal: a line between lines is redrawn in place
  std::map<std::string, std::string> metadata = {};  // of the checkpoint
};

/// What a run found out. Memory since the pool's peaks were reset.
struct TrainResult {
  std::vector<StepRecord> steps;
  std::vector<std::pair<std::int64_t, double>> validations;  // step, nats per byte on a part of the held-out text
  double validation_loss = 0;                                // on all of it, or evenly spread windows of a short run
  std::int64_t validation_bytes = 0;                         // scored
  Baselines baselines;
  bool interrupted = false;
  std::string prompt, sample;

  double seconds = 0;
  double tokens_per_second = 0;
  std::uint64_t peak_live_bytes = 0, peak_reserved_bytes = 0;
  std::uint64_t allocation_hash = 0;
  std::array<std::uint64_t, category_count> bytes_by_category{};  // peaks
  double hit_rate = 0;
  std::vector<std::pair<std::string, std::string>> written;  // what, path
};

/// Takes the steps that the trainer has left, printing a line to `out` after the first one, after every `report` and
/// after the last; then validates, writes a sample and the files, and prints the report. SIGINT and SIGTERM finish the
/// step, save (on a cpu without a name to "poolgrad-train.safetensors") and end the run. Throws what the steps throw,
/// FileError, and, before the first step, ValueError for a config that is no JSON.
TrainResult train(Trainer& trainer, std::ostream& out, RunOptions options = {});

}  // namespace poolgrad::nn
