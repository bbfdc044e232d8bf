// What every named attention module is: heads in, heads out. Multihead wrappers (attention/modules/multihead.h) and
// factories take any of them.
#pragma once

#include <cstdint>
#include <optional>

#include "attention/attend.h"
#include "nn/module.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad::attention {

/// Options of a core for every call that does not set them.
struct CoreOptions {
  std::optional<double> scale = {};    // of the scores; 1 / sqrt(D) where absent
  std::optional<double> softcap = {};  // AttendOptions::softcap
  /// Probability in [0, 1) that a weight is dropped; in training mode only.
  double dropout = 0.0;
  Generator* generator = nullptr;  // default_generator() where null; must outlive the module
};

class AttentionCore : public nn::Module {
 public:
  /// q (B, Nq, H, D), k (B, Nk, Hkv, D), v (B, Nk, Hkv, Dv) -> (B, Nq, H, Dv) in the dtype of the inputs.
  /// Differentiable in q, k, v, the bias and the sinks. Throws ShapeError, DTypeError, DeviceError, ValueError.
  virtual Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& call = {}) = 0;
  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& call = {}, CallSite = {}) {
    return forward(q, k, v, call);
  }
  /// Throws ValueError where this many heads cannot be served, so that wrappers refuse at construction.
  virtual void check_heads(std::int64_t heads) const;

  /// The pattern for `length` keys, not itself causal, where it does not follow from the content: then a sequence can
  /// be gone through in chunks, with the keys of earlier ones that are still seen.
  virtual std::optional<Pattern> fixed_pattern(std::int64_t /*length*/, bool /*causal*/) const { return std::nullopt; }

  /// Whether a query may see keys behind its own position, in calls that are causal or not.
  virtual bool looks_ahead(bool causal) const { return !causal; }

  /// Whether keys may be those of more positions than the queries', which come last: what continues a sequence.
  virtual bool continues() const { return true; }
  /// Throws ValueError where fixed_pattern() differs from length to length and there will be more than `longest` keys:
  /// a sequence is continued by the pattern of its longest length.
  virtual void check_continued(std::int64_t /*keys*/, std::int64_t /*longest*/) const {}

  /// Whether the ranks of a communicator share sequences here.
  virtual bool divides_sequences() const { return false; }
  /// Where `rows` queries lie that end with the last of `keys` keys, in calls that are not told that they are a part.
  virtual kernels::PositionMap positions(std::int64_t rows, std::int64_t keys) const {
    return kernels::PositionMap::contiguous(rows, keys - rows);
  }

  /// The length of the whole sequence where a call has `part` positions; `told` as AttendOptions::whole.
  virtual std::int64_t whole_length(std::int64_t part, std::int64_t told) const { return told > 0 ? told : part; }

 protected:
  /// Throws ValueError for a dropout outside [0, 1) and a softcap that is not positive.
  explicit AttentionCore(const CoreOptions& options);

  /// The call's options, completed by the core's.
  AttendOptions attend_options(AttendOptions call) const;

  CoreOptions options_;
  /// The dropout in force: 0 outside training.
  double dropout() const { return training() ? options_.dropout : 0.0; }
};

}  // namespace poolgrad::attention
