// The problems of the CPU's attention tests on cuda:0, compared with the same definition pair by pair in f64.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/attention/tile.cuh"
#include "tests/kernels/attention/backward_patterns.h"
#include "tests/kernels/attention/forward_problem.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/mma_allowed.h"

namespace poolgrad::kernels::testing {

/// Fixture for portable kernels and for tensor cores.
class PortableAttention : public ::testing::Test {
  const MmaAllowed not_allowed_{false};
};
enum class MultipliedBy { warps, warpgroups };
class MmaAttention : public ::testing::TestWithParam<MultipliedBy> {
  const WarpgroupsAllowed warpgroups_{GetParam() == MultipliedBy::warpgroups};
  const MmaAllowed allowed_;
};
inline std::string name_of(const ::testing::TestParamInfo<MultipliedBy>& info) {
  return info.param == MultipliedBy::warps ? "by_warps" : "by_warpgroups";
}

/// Host arrays, with the memory around them, and their copies on cuda:0.
class DeviceOperands {
 public:
  template <class... Arrays>
  explicit DeviceOperands(const Arrays&... arrays) {
    (add(arrays), ...);
  }
  /// The view of the copy that corresponds to a view of a host array.
  View operator()(View view) const {
    if (!view.data) return view;
    for (const auto& [host, device] : copies_) {
      const auto* at = view.as<const std::uint8_t>();
      if (at < host->data() || at > host->data() + host->size()) continue;
      view.data = device->data() + (at - host->data());
      return view;
    }
    throw std::logic_error("a view of no array");
  }
  AttentionScores operator()(AttentionScores scores) const {
    for (View* view : {&scores.bias, &scores.alibi, &scores.sinks}) *view = (*this)(*view);
    return scores;
  }
  /// Copies the device arrays back to the host.
  void fetch() const {
    for (const auto& [host, device] : copies_) {
      const std::vector<std::uint8_t> bytes = device->read();
      std::copy(bytes.begin(), bytes.end(), const_cast<std::uint8_t*>(host->data()));
    }
  }

 private:
  template <class Array>
  void add(const Array& array) {
    if constexpr (requires { array.get(); }) {
      if (array) add(*array);
    } else {
      copies_.emplace_back(&array.bytes(), std::make_unique<DeviceArray<std::uint8_t>>(array.bytes()));
    }
  }
  std::vector<std::pair<const std::vector<std::uint8_t>*, std::unique_ptr<DeviceArray<std::uint8_t>>>> copies_;
};

template <class Operands = DeviceOperands>
void run_there(ForwardProblem& p) {
  for (TestArray* result : {p.out.get(), p.lse.get()})  // NaN reveals unwritten elements, of a second run too
    result->fill([](std::int64_t) { return nan; });
  const Operands there(p.q, p.k, p.v, p.out, p.lse, p.bias, p.alibi, p.sinks);
  attention_forward(cuda0, p.schedule, there(p.scores), there(*p.q), there(*p.k), there(*p.v), there(*p.out),
                    there(*p.lse));
  there.fetch();
}
inline void expect_definition_there(ForwardProblem& p, const std::string& what = "") {
  SCOPED_TRACE(what + " Nq " + std::to_string(p.shape.queries) + " Nk " + std::to_string(p.shape.keys) + " Hq " +
               std::to_string(p.shape.q_heads) + " D " + std::to_string(p.shape.depth) + " Dv " +
               std::to_string(p.shape.v_depth) + " " + std::string(to_string(p.q->dtype())));
  run_there(p);
  expect_rows(*p.out, p.lse.get(), p.definition());
}
inline void expect_definition_there(ForwardProblem&& p, const std::string& what = "") {
  expect_definition_there(p, what);
}

inline ForwardProblem of_pattern(DType dtype, const Named& pattern, PositionMap queries, PositionMap keys, bool causal,
                                 std::int64_t depth = 9, std::int64_t v_depth = 8) {
  ForwardProblem p(dtype, {1, queries.count, keys.count, 4, 2, depth, v_depth});
  const BackwardExample e = example(pattern, queries, keys, causal);
  p.schedule = e.schedule;
  p.multiplicity = e.multiplicity;
  return p;
}

/// Changes a limit until the end of the scope.
class Limited {
 public:
  Limited(std::int64_t& limit, std::int64_t to) : limit_(limit) { limit = to; }
  ~Limited() { limit_ = before_; }
  Limited(const Limited&) = delete;
  Limited& operator=(const Limited&) = delete;

 private:
  std::int64_t& limit_;
  std::int64_t before_ = limit_;
};

/// run() gives the same results each time, with threads and blocks in other orders.
inline void expect_same_bits_in_every_order(ForwardProblem& p) {
  run_there(p);
  const auto out = p.out->bytes(), lse = p.lse->bytes();
  for (int again = 0; again < 4; ++again) {
    run_there(p);
    EXPECT_EQ(p.out->bytes(), out);
    EXPECT_EQ(p.lse->bytes(), lse);
  }
}

/// The results are the same if out overwrites the queries.
inline void expect_same_out_over_the_queries(ForwardProblem& p) {
  run_there(p);
  const DeviceOperands there(p.q, p.k, p.v);
  attention_forward(cuda0, p.schedule, p.scores, there(*p.q), there(*p.k), there(*p.v), there(*p.q), {});
  there.fetch();
  EXPECT_EQ(p.q->bytes(), p.out->bytes());
}

/// The results do not depend on the limit.
inline void expect_same_rows_within(std::int64_t& limit, std::initializer_list<std::int64_t> values,
                                    ForwardProblem& p) {
  run_there(p);
  const auto out = p.out->bytes(), lse = p.lse->bytes();
  for (const std::int64_t value : values) {
    const Limited limited(limit, value);
    run_there(p);
    EXPECT_EQ(p.out->bytes(), out) << value;
    EXPECT_EQ(p.lse->bytes(), lse) << value;
  }
}
/// The results are the same in a grid of few blocks that each take several tiles.
inline void expect_same_rows_by_few_blocks(ForwardProblem& p) { expect_same_rows_within(cuda::most_blocks, {1, 3}, p); }

/// Visits the keys in parts, in this order. Partial results in the compute dtype overwrite the carried ones.
inline void run_in_parts_there(ForwardProblem& p, const std::vector<std::pair<std::int64_t, std::int64_t>>& parts) {
  TestArray sum(p.compute_dtype(), {p.shape.batch, p.shape.queries, p.shape.q_heads, p.shape.v_depth});
  const DeviceOperands there(p.q, p.k, p.v, p.out, p.lse, p.bias, p.alibi, p.sinks, sum);
  const auto part = [&](View view, int dimension, std::int64_t begin, std::int64_t end) {
    view.data = view.as<char>() + begin * view.strides[dimension] * static_cast<std::int64_t>(size_of(view.dtype));
    view.shape[dimension] = end - begin;
    return there(view);
  };
  for (std::size_t n = 0; n < parts.size(); ++n) {
    const auto [begin, end] = parts[n];
    AttentionSchedule schedule = p.schedule;
    schedule.keys = PositionMap::contiguous(end - begin, p.schedule.keys.first + begin);
    AttentionScores scores = there(p.scores);
    if (p.bias) scores.bias = part(p.scores.bias, 3, begin, end);
    const bool last = n + 1 == parts.size();
    attention_forward(cuda0, schedule, scores, there(*p.q), part(*p.k, 1, begin, end), part(*p.v, 1, begin, end),
                      there(last ? *p.out : sum), there(*p.lse), n > 0 ? there(sum) : View{},
                      n > 0 ? there(*p.lse) : View{});
  }
  there.fetch();
}

template <class Operands = DeviceOperands>
void run_there(const BackwardCheck& check, const AttentionSchedule& schedule, const BackwardCheck::Result& result,
               bool accumulate = false) {
  const Operands there(check.q, check.k, check.v, check.grad_out, check.lse, check.delta, check.bias, check.alibi,
                       check.sinks, result.dq, result.dk, result.dv, result.dbias);
  AttentionGradients gradients = result.views(accumulate);
  for (View* view : {&gradients.dq, &gradients.dk, &gradients.dv, &gradients.dbias}) *view = there(*view);
  attention_backward(cuda0, schedule, there(check.scores), there(check.q.view()), there(check.k.view()),
                     there(check.v.view()), there(check.lse), there(check.delta), there(check.grad_out.view()),
                     gradients);
  there.fetch();
}
inline void expect_definition_there(const BackwardExample& example,
                                    std::initializer_list<DType> dtypes = {DType::f64, DType::f32}) {
  for (const DType dtype : dtypes) {
    SCOPED_TRACE(::testing::Message() << "B " << example.batch << " Nq " << example.queries() << " Nk "
                                      << example.keys() << " Hq " << example.q_heads << " Hkv " << example.kv_heads
                                      << " D " << example.depth << " Dv " << example.v_depth << " left "
                                      << example.schedule.left << " right " << example.schedule.right << " "
                                      << to_string(dtype));
    const BackwardCheck check(example, dtype);
    const BackwardCheck::Result result(check.e, dtype);
    run_there(check, check.e.schedule, result);
    check.expect(result, dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 2e-5 : tolerance(dtype));
  }
}

inline void expect_no_overflow_of_huge_biases_there(const BackwardExample& e, DType dtype) {
  expect_no_overflow_of_huge_biases(e, dtype, [](const BackwardCheck& check) {
    auto result = std::make_unique<BackwardCheck::Result>(check.e, check.storage);
    run_there(check, check.e.schedule, *result);
    return result;
  });
}

/// Separate documents between these bounds, which must outlive the result.
inline BackwardExample with_documents(BackwardExample e, const std::vector<std::int64_t>& bounds) {
  e.schedule.documents = bounds.data();
  e.schedule.document_count = static_cast<std::int32_t>(bounds.size()) - 1;
  const auto document = [&bounds](std::int64_t x) {
    return x < bounds.front() || x >= bounds.back()
               ? -1
               : std::upper_bound(bounds.begin(), bounds.end(), x) - bounds.begin();
  };
  e.multiplicity = [document, inner = e.multiplicity](std::int64_t h, std::int64_t i, std::int64_t j) {
    return document(i) >= 0 && document(i) == document(j) ? inner(h, i, j) : 0.0;
  };
  return e;
}

inline void expect_same_gradients_within(std::int64_t& limit, std::initializer_list<std::int64_t> values,
                                         const BackwardCheck& check, DType dtype) {
  const BackwardCheck::Result first(check.e, dtype);
  run_there(check, check.e.schedule, first);
  for (const std::int64_t value : values) {
    const Limited limited(limit, value);
    const BackwardCheck::Result result(check.e, dtype);
    run_there(check, check.e.schedule, result);
    expect_same_bits(first, result, std::to_string(value));
  }
}
inline void expect_same_gradients_by_few_blocks(const BackwardCheck& check, DType dtype) {
  expect_same_gradients_within(cuda::most_blocks, {1, 3}, check, dtype);
}

/// Results are the same in every order of threads and blocks.
inline void expect_same_bits_again(const BackwardCheck& check, DType dtype) {
  const BackwardCheck::Result first(check.e, dtype);
  run_there(check, check.e.schedule, first);
  for (int again = 0; again < 3; ++again) {
    const BackwardCheck::Result result(check.e, dtype);
    run_there(check, check.e.schedule, result);
    expect_same_bits(first, result, "again");
  }
}

}  // namespace poolgrad::kernels::testing
