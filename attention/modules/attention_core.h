// The interface of all named attention modules: heads in, heads out. Multihead wrappers (attention/modules/multihead.h)
// and factories accept any core.
#pragma once

#include <cstdint>
#include <optional>

#include "attention/attend.h"
#include "nn/module.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad::attention {

/// Default options of a core, for calls that do not set them.
struct CoreOptions {
  std::optional<double> scale = {};    // of the scores; by default 1 / sqrt(D)
  std::optional<double> softcap = {};  // AttendOptions::softcap
  /// Probability in [0, 1) that a weight is dropped, in training mode only.
  double dropout = 0.0;
  Generator* generator = nullptr;  // nullptr: default_generator(); must outlive the module
};

class AttentionCore : public nn::Module {
 public:
  /// q (B, Nq, H, D), k (B, Nk, Hkv, D), v (B, Nk, Hkv, Dv) -> (B, Nq, H, Dv) in the dtype of the inputs.
  /// Differentiable in q, k, v, the bias and the sinks. Throws ShapeError, DTypeError, DeviceError, ValueError.
  virtual Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& call = {}) = 0;
  Tensor operator()(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& call = {}, CallSite = {}) {
    return forward(q, k, v, call);
  }
  /// Throws ValueError if the core does not support this number of heads, so that wrappers refuse it at construction.
  virtual void check_heads(std::int64_t heads) const;

  /// Returns the pattern for `length` keys, without the causal mask; nullopt if it depends on the content. With such a
  /// pattern a sequence can come in chunks, with the earlier keys that are still visible.
  virtual std::optional<Pattern> fixed_pattern(std::int64_t /*length*/, bool /*causal*/) const { return std::nullopt; }

  /// Returns whether a query may see keys after its own position, in causal or other calls.
  virtual bool looks_ahead(bool causal) const { return !causal; }

  /// Returns whether there may be more keys than queries, whose positions come last. A continued sequence needs this.
  virtual bool continues() const { return true; }
  /// Throws ValueError if fixed_pattern() depends on the length and there will be more than `longest` keys: a sequence
  /// is continued with the pattern of its longest length.
  virtual void check_continued(std::int64_t /*keys*/, std::int64_t /*longest*/) const {}

  /// Returns whether the ranks of a communicator share sequences.
  virtual bool divides_sequences() const { return false; }
  /// Returns the positions of `rows` queries that end with the last of `keys` keys, for calls without
  /// AttendOptions::whole.
  virtual kernels::PositionMap positions(std::int64_t rows, std::int64_t keys) const {
    return kernels::PositionMap::contiguous(rows, keys - rows);
  }

  /// Returns the length of the whole sequence for a call with `part` positions; `told` is AttendOptions::whole.
  virtual std::int64_t whole_length(std::int64_t part, std::int64_t told) const { return told > 0 ? told : part; }

 protected:
  /// Throws ValueError for a dropout outside [0, 1) and a softcap that is not positive.
  explicit AttentionCore(const CoreOptions& options);

  /// Returns the call's options, completed by the core's.
  AttendOptions attend_options(AttendOptions call) const;

  CoreOptions options_;
  /// Returns the current dropout: 0 outside training.
  double dropout() const { return training() ? options_.dropout : 0.0; }
};

}  // namespace poolgrad::attention
