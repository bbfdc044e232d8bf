// One model, trained to recall and tested.
#pragma once

#include <memory>

#include "examples/recall/recall_curriculum.h"
#include "examples/recall/recall_options.h"
#include "examples/recall/recall_result.h"
#include "nn/adamw.h"

namespace poolgrad::examples {

class RecallTrainer {
 public:
  RecallTrainer(const RecallOptions& options, const AttentionOptions& attention);

  /// One step; `used` tells the part of the budget used up before it.
  RecallRecord step(double used);
  /// `questions` questions at each distance, on sequences of their own.
  RecallScore score(std::int64_t distance, std::int64_t questions);

  const RecallCurriculum& curriculum() const { return curriculum_; }
  std::int64_t parameter_count() const { return model_->parameter_count(); }
  std::int64_t tokens() const { return tokens_; }

 private:
  struct Answers {
    Tensor logits, targets;
    std::int64_t right = 0, asked = 0;
  };
  /// Sequences `first`, ... of a seed.
  Answers answer(const RecallTask& task, std::uint64_t seed, std::int64_t first, std::int64_t sequences);

  const RecallOptions& options_;
  Generator generator_;
  std::unique_ptr<nn::LanguageModel> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  RecallCurriculum curriculum_;
  std::int64_t step_ = 0, drawn_ = 0, tokens_ = 0;
};

/// 32, 64, ... and the distance itself.
std::vector<std::int64_t> scored_distances(std::int64_t distance);

}  // namespace poolgrad::examples
