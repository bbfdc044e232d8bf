// Gradients summed over ranks while the backward pass runs, several at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/ring/communicator.h"
#include "autograd/engine/engine.h"
#include "nn/training/ranks.h"
#include "parallel/collectives.h"

namespace poolgrad::parallel {

/// The parameters in reverse, which is about the order in which a backward pass comes to them, in buckets of `bytes`
/// that are decided here once; buckets go one after another, each as soon as it and those before it are complete, so
/// that what is sent and what is added up has one order. Then gradients are views of their bucket.
class GradientBuckets final : public nn::GradientSums {
 public:
  GradientBuckets(std::shared_ptr<attention::Communicator> ranks, const std::vector<Tensor>& parameters,
                  std::int64_t bytes);
  ~GradientBuckets() override;

  void begin() override;
  void finish() override;

 private:
  struct Bucket {
    std::vector<Tensor> parameters;
    std::size_t missing = 0;  // gradients
    Tensor flat;
    std::unique_ptr<SumOverRanks> sum;
  };
  void accumulated(std::size_t bucket);
  /// Starts the sum of the next bucket, adds up that of the one before, and is done with the one before that.
  void launch();
  void take(std::size_t bucket);

  std::shared_ptr<attention::Communicator> ranks_;
  std::vector<Bucket> buckets_;
  std::vector<HookHandle> hooks_;
  std::size_t launched_ = 0;
  bool listens_ = false;
};

}  // namespace poolgrad::parallel
