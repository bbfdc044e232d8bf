// Attention of one shape and pattern, run and measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "attention/pattern.h"
#include "examples/headline/row.h"

namespace poolgrad::examples {

enum class Work {
  forward,             // q, k, v and out live
  forward_over_query,  // out is written over q
  training             // forward and backward; dq is written over out
};

struct AttentionWork {
  Work work = Work::forward;
  std::int64_t batch = 1, tokens = 1, heads = 8, head_dim = 64;
  attention::Pattern pattern = attention::Pattern::dense();
  int ring = 1;             // ranks that share the sequence, on this one device
  std::string budget = {};  // hard limit of the pool; empty: none
};

/// Operations of a call: 4 D for each visited pair forward, 3.5 times that with the backward.
double operations_of(const AttentionWork& work);
/// Bytes of the tensors that must live at once, docs/attention.md.
double formula_bytes(const AttentionWork& work, DType dtype);

/// One call on fresh tensors; throws OutOfMemoryError.
void run_once(const AttentionWork& work, DType dtype, Device device);
/// Runs it as often as it is worth, at least once. Where the bytes do not fit the machine a sim device counts them.
Outcome measure(const AttentionWork& work, Bench& bench);

/// A row that does so.
Row attention_row(std::string id, std::string label, const AttentionWork& work, const Theirs& theirs);

}  // namespace poolgrad::examples
