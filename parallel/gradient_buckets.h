// Sums gradients over ranks, several at a time, during the backward pass.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/ring/communicator.h"
#include "autograd/engine/engine.h"
#include "nn/training/ranks.h"
#include "parallel/collectives.h"

namespace poolgrad::parallel {

/// Groups the parameters in reverse order, about the order of the backward pass, into fixed buckets of `bytes`. A
/// bucket starts once it and all earlier ones are complete, so all ranks send and add in one order. Gradients then are
/// views of their bucket.
class GradientBuckets final : public nn::GradientSums {
 public:
  GradientBuckets(std::shared_ptr<attention::Communicator> ranks, const std::vector<Tensor>& parameters,
                  std::int64_t bytes);
  ~GradientBuckets() override;

  void begin(std::int64_t passes) override;
  void finish() override;

 private:
  struct Bucket {
    std::vector<Tensor> parameters;
    std::size_t missing = 0;  // gradients
    Tensor flat;
    std::unique_ptr<SumOverRanks> sum;
  };
  void accumulated(std::size_t bucket);
  /// Starts the sum of the next bucket, adds up the previous one, and finishes the one before that.
  void launch();
  void take(std::size_t bucket);

  std::shared_ptr<attention::Communicator> ranks_;
  std::vector<Bucket> buckets_;
  std::vector<HookHandle> hooks_;
  std::size_t launched_ = 0;
  bool listens_ = false;
};

}  // namespace poolgrad::parallel
