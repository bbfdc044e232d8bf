// Checkpoints: everything that a training run needs to continue bit for bit, in one safetensors file. It holds
// parameters and buffers as "model.<name>", optimizer state as "optimizer.<name>", averages of the parameters as
// "ema.<name>", and the merges of a tokenizer as "tokenizer.merges" (merges, 2) i32. Counters are metadata. In old
// files without step counts of parameters, each parameter is assumed to have taken every step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "nn/ema.h"
#include "nn/loss_scaler.h"
#include "nn/module.h"
#include "nn/optimizer.h"
#include "nn/text/tokenizer.h"
#include "nn/training/pretrained.h"

namespace poolgrad::nn {

/// The part of a checkpoint besides parameters and optimizer state.
struct TrainingState {
  std::int64_t step = 0;                             // steps done
  std::int64_t data_position = 0;                    // examples drawn
  kernels::RandomKey generator = {};                 // of dropout
  std::optional<LossScaler::State> loss_scale = {};  // without a scaler: none
  std::shared_ptr<const Tokenizer> tokenizer = {};   // of the text; none: bytes are tokens
  const EMA* averages = nullptr;                     // of the parameters, to save; nullptr: none
  std::map<std::string, std::string> metadata = {};  // the caller's own, such as the configuration
};

/// The optimizer's part of a checkpoint.
struct OptimizerState {
  OptimizerState(const Optimizer& optimizer)  // NOLINT: an optimizer has this state
      : tensors(optimizer.state()), steps(optimizer.steps()), parameter_steps(optimizer.parameter_steps()) {}

  NamedTensors tensors;
  std::int64_t steps;
  std::vector<std::int64_t> parameter_steps;  // of every parameter of the model
};

/// Writes atomically: if the disk is full, the old file survives. Throws FileError.
void save_training_state(const std::string& path, const Module& model, const OptimizerState& optimizer,
                         const TrainingState& state, CallSite = {});
/// Reads the metadata, the counters, and the tensors of model and optimizer. Model, optimizer and averages change only
/// if everything fits and `accept`, if given, does not throw for the counters. `own` lists the parameters that the
/// optimizer has, if not all; it then takes their state. Reads `averages` too, if given. Throws FileError for a
/// malformed file, and ValueError for a checkpoint of another model or without averages. If the disk fails during the
/// read, some tensors may have changed.
TrainingState load_training_state(const std::string& path, Module& model, Optimizer& optimizer,
                                  const std::optional<std::vector<std::size_t>>& own = std::nullopt,
                                  EMA* averages = nullptr, const std::function<void(const TrainingState&)>& accept = {},
                                  CallSite = {});
/// Reads the parameters of a model for use, or their averages if the file has them. Returns the caller's metadata.
/// Throws the errors of load_training_state(). `path` may be a folder in Hugging Face's format
/// (nn/training/pretrained.h), here and in load_starting_weights().
std::map<std::string, std::string> load_trained_model(const std::string& path, Module& model, CallSite = {});
/// Reads the tensors of a checkpoint that fit the model by name, shape and dtype, or their averages if the file has
/// them. Other tensors of the model keep their values. Throws FileError, changing nothing, for a malformed file, and if
/// no tensor fits.
StartingWeights load_starting_weights(const std::string& path, Module& model, CallSite = {});
/// Compares the tensors of a checkpoint or a folder with its model, reading none. `make` makes that model, here on a
/// simulated device, where it takes no memory. Throws FileError if they differ.
void check_weights(const std::string& path, const LanguageModelConfig& config,
                   const std::function<std::unique_ptr<Module>(const ParameterOptions&)>& make);
/// Reads the tokenizer; without one in the file, returns the tokenizer of bytes. Throws FileError, also for invalid
/// merges.
Tokenizer load_tokenizer(const std::string& path, CallSite = {});
/// Reads the caller's metadata. Throws FileError.
std::map<std::string, std::string> read_training_metadata(const std::string& path, CallSite = {});

}  // namespace poolgrad::nn
