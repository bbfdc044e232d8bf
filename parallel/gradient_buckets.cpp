#include "parallel/gradient_buckets.h"

#include <utility>

#include "allocator/memory_scope.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "tensor/grad_mode.h"

namespace poolgrad::parallel {

GradientBuckets::GradientBuckets(std::shared_ptr<attention::Communicator> ranks, const std::vector<Tensor>& parameters,
                                 std::int64_t bytes)
    : ranks_(std::move(ranks)) {
  std::size_t filled = 0;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const Tensor& parameter = parameters[i];
    const bool fits = !buckets_.empty() && static_cast<std::int64_t>(filled + bytes_of(parameter)) <= bytes &&
                      buckets_.back().parameters[0].dtype() == parameter.dtype() &&
                      buckets_.back().parameters[0].device() == parameter.device();
    if (!fits) buckets_.emplace_back(), filled = 0;
    buckets_.back().parameters.push_back(parameter);
    filled += bytes_of(parameter);
    hooks_.push_back(register_post_accumulate_hook(
        parameter, [this, bucket = buckets_.size() - 1](const Tensor&) { accumulated(bucket); }));
  }
}

GradientBuckets::~GradientBuckets() {
  for (HookHandle& hook : hooks_) hook.remove();
}

void GradientBuckets::begin(std::int64_t passes) {
  for (Bucket& bucket : buckets_) {
    bucket.sum.reset();
    bucket.flat = {};
    bucket.missing = bucket.parameters.size() * static_cast<std::size_t>(passes);
  }
  launched_ = 0;
  listens_ = true;
}

void GradientBuckets::accumulated(std::size_t bucket) {
  if (!listens_) return;
  --buckets_[bucket].missing;
  while (launched_ < buckets_.size() && buckets_[launched_].missing == 0) launch();
}

void GradientBuckets::launch() {
  const NoGradGuard no_grad;
  Bucket& bucket = buckets_[launched_];
  std::vector<Tensor> gradients;
  std::int64_t count = 0;
  for (const Tensor& parameter : bucket.parameters) {
    gradients.push_back(parameter.grad());
    if (gradients.back().defined()) count += gradients.back().numel();
  }
  const MemoryScope scope("gradient_bucket", Category::gradient);
  bucket.flat = Tensor::empty({count}, bucket.parameters[0].options());
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const std::int64_t end = begin + gradients[i].numel();
    const Tensor place = reshape(slice(bucket.flat, 0, begin, end), gradients[i].shape());
    Tensor(place).copy_from(gradients[i]);
    bucket.parameters[i].set_grad(place);
    begin = end;
  }
  gradients.clear();
  bucket.sum = std::make_unique<SumOverRanks>(ranks_, bucket.flat);
  if (launched_ >= 1) buckets_[launched_ - 1].sum->add();
  if (launched_ >= 2) take(launched_ - 2);
  ++launched_;
}

void GradientBuckets::take(std::size_t bucket) {
  buckets_[bucket].sum->finish();
  buckets_[bucket].sum.reset();
  buckets_[bucket].flat = {};  // the gradients hold the memory
}

void GradientBuckets::finish() {
  listens_ = false;
  while (launched_ < buckets_.size()) launch();  // includes parameters without a gradient in this pass
  if (launched_ >= 1) buckets_[launched_ - 1].sum->add();
  for (std::size_t bucket = launched_ < 2 ? 0 : launched_ - 2; bucket < launched_; ++bucket) take(bucket);
}

}  // namespace poolgrad::parallel
