// Checkpoints: everything a training run needs to go on bit for bit, in one safetensors file: parameters
// and buffers as "model.<name>", optimizer state as "optimizer.<name>", averages of the parameters as "ema.<name>", the
// pairs that a tokenizer merges as "tokenizer.merges" (merges, 2) i32, and the counters as metadata. A file written
// before parameters counted their own steps is read as if each had taken every step of the optimizer.
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

namespace poolgrad::nn {

/// What is neither parameter nor optimizer state.
struct TrainingState {
  std::int64_t step = 0;                             // steps done
  std::int64_t data_position = 0;                    // examples drawn
  kernels::RandomKey generator = {};                 // of dropout
  std::optional<LossScaler::State> loss_scale = {};  // of a run that has one
  std::shared_ptr<const Tokenizer> tokenizer = {};   // of the text; none: of bytes
  const EMA* averages = nullptr;                     // of the parameters, to be saved; none
  std::map<std::string, std::string> metadata = {};  // the caller's own: configuration
};

/// What a checkpoint has of an optimizer.
struct OptimizerState {
  NamedTensors tensors;
  std::int64_t steps = 0;
  std::vector<std::int64_t> parameter_steps;  // of every parameter of the model
};

/// Writes atomically: on a full disk the old file survives. Throws FileError.
void save_training_state(const std::string& path, const Module& model, const OptimizerState& optimizer,
                         const TrainingState& state, CallSite = {});
void save_training_state(const std::string& path, const Module& model, const Optimizer& optimizer,
                         const TrainingState& state, CallSite = {});
/// Reads the metadata, the counters and the tensors of model and optimizer; model, optimizer and averages change only
/// if everything fits, and `accept`, if given, does not throw at what the counters are. Throws FileError for a
/// malformed file and ValueError for one of another model. A disk that fails while tensors are read may leave some of
/// them changed. An optimizer of some of the model's parameters (`own`, their numbers) takes theirs. `averages`, if
/// given, are read with the rest, and ValueError if there are none.
TrainingState load_training_state(const std::string& path, Module& model, Optimizer& optimizer,
                                  const std::optional<std::vector<std::size_t>>& own = std::nullopt,
                                  EMA* averages = nullptr, const std::function<void(const TrainingState&)>& accept = {},
                                  CallSite = {});
/// The parameters alone, or in their place the averages where the file has them, for a model that is to be used;
/// returns the caller's metadata. Throws as load_training_state().
std::map<std::string, std::string> load_trained_model(const std::string& path, Module& model, CallSite = {});
/// The tokenizer alone; that of bytes where the file has none. Throws FileError, also for merges that make no
/// tokenizer.
Tokenizer load_tokenizer(const std::string& path, CallSite = {});
/// The caller's metadata alone. Throws FileError.
std::map<std::string, std::string> read_training_metadata(const std::string& path, CallSite = {});

}  // namespace poolgrad::nn
