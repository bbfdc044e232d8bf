// A small run that several ranks share, as threads or as processes.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/modules/multihead.h"
#include "nn/training/trainer.h"
#include "parallel/training_ranks.h"

namespace poolgrad::parallel::testing_support {

using attention::Layout;
using attention::Pattern;

struct SharedRun {
  Pattern pattern = Pattern::causal();
  std::int64_t batch = 4, context = 24, accumulate = 1;
  double dropout = 0.0, attention_dropout = 0.0;
  nn::Positions positions = nn::Positions::rope;
  nn::OptimizerKind optimizer = nn::OptimizerKind::adamw;
  bool shard = false;
  std::int64_t steps = 20;
  DType dtype = DType::f64;
  std::optional<nn::LossScalerOptions> loss_scale = {};
  double ema = 0;
  std::vector<Device> devices = {cpu};  // of the ranks in turn

  Device device_of(int rank) const { return devices[static_cast<std::size_t>(rank) % devices.size()]; }
};

inline nn::Corpus text_of_ranks(std::uint8_t sixth = 'a') {
  std::vector<std::uint8_t> text;
  std::uint32_t x = 9;
  for (std::uint32_t i = 0; i < 2000; ++i) {
    x = x * 1664525u + 1013904223u;
    text.push_back(static_cast<std::uint8_t>("abcdefgh"[(x >> 24) % (i % 3 + 2)]));
  }
  text[5] = sixth;
  const nn::Text train(text);
  return {train, train.part(100, 600)};
}

/// Returns the ranks that the trainer uses in place of the argument.
using InPlaceOf = std::function<nn::Ranks*(TrainingRanks&)>;

/// One rank of the run, or the whole run where there are no ranks.
struct RankOfRun {
  explicit RankOfRun(const SharedRun& run, std::shared_ptr<attention::Communicator> all = {}, const Grid& grid = {},
                     Layout layout = Layout::zigzag, const InPlaceOf& other = {})
      : ranks(all ? std::make_unique<TrainingRanks>(all, grid, TrainingRanksOptions{layout, 1 << 11}) : nullptr),
        trainer(model_of(run), text_of_ranks(),
                {.batch = run.batch,
                 .accumulate = run.accumulate,
                 .steps = run.steps,
                 .learning_rate = 0.01,
                 .generator = &generator,
                 .loss_scale = run.loss_scale,
                 .optimizer = run.optimizer,
                 .ema = run.ema,
                 .ranks = other ? other(*ranks) : ranks.get(),
                 .shard_optimizer = run.shard}) {}

  std::unique_ptr<nn::LanguageModel> model_of(const SharedRun& run) {
    attention::RingSetup ring;
    if (ranks && ranks->grid().ring > 1)
      ring = {.layout = ranks->layout(), .communicator = ranks->ring(), .parts_are_told = true};
    return std::make_unique<nn::LanguageModel>(
        nn::LanguageModelConfig{.context = run.context,
                                .layers = 2,
                                .width = 16,
                                .heads = 2,
                                .kv_heads = 1,
                                .positions = run.positions,
                                .dropout = run.dropout,
                                .dtype = run.dtype},
        attention::attention_mixer(run.pattern, {.layer_norm = false, .post_norm = false, .output_deviation = 0.1},
                                   {.dropout = run.attention_dropout, .generator = &generator}, ring),
        nn::ParameterOptions{.device = run.device_of(ranks ? ranks->rank() : 0), .generator = &generator});
  }

  std::vector<double> losses(std::int64_t steps) {
    std::vector<double> result;
    for (std::int64_t i = 0; i < steps; ++i) {
      const nn::StepRecord record = trainer.step();
      result.push_back(record.loss);
      result.push_back(record.gradient_norm);
    }
    return result;
  }

  Generator generator{11};
  std::unique_ptr<TrainingRanks> ranks;
  nn::Trainer trainer;
};

/// Returns losses and norms of all steps, and the validation loss.
inline std::vector<double> history(RankOfRun& rank) {
  std::vector<double> result = rank.losses(rank.trainer.options().steps);
  result.push_back(rank.trainer.validate(2).loss);
  for (const double loss : rank.trainer.loss_by_position(2).by_position) result.push_back(loss);
  return result;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (const double difference = std::abs(a[i] - b[i]); !(difference <= largest)) largest = difference;
  return largest;
}

/// Calls body(rank) for every rank of a grid, each on its own thread.
inline void on_ranks(const SharedRun& run, const Grid& grid, Layout layout,
                     const std::function<void(RankOfRun&)>& body) {
  attention::LocalGroup group(grid.size());
  group.run(1, [&](attention::Communicator& one, int) {
    RankOfRun rank(run, group.communicator(one.rank()), grid, layout);
    body(rank);
  });
}

/// Returns the history, which must be the same on all ranks.
inline std::vector<double> history_of(const SharedRun& run, const Grid& grid, Layout layout = Layout::zigzag) {
  std::vector<std::vector<double>> all(static_cast<std::size_t>(grid.size()));
  on_ranks(run, grid, layout,
           [&](RankOfRun& rank) { all[static_cast<std::size_t>(rank.ranks->rank())] = history(rank); });
  for (const auto& one : all) EXPECT_EQ(one, all[0]) << to_string(grid);
  return all[0];
}

inline std::vector<double> history_alone(const SharedRun& run) {
  RankOfRun alone(run);
  return history(alone);
}

}  // namespace poolgrad::parallel::testing_support
