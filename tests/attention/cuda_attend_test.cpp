// attend() on cuda:0, the emulated device, compared with the definition: every pattern and option, with gradients.
// Portable kernels compute in f64 and f32, tensor cores in bf16 and f16.
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tests/attention/attend_on.h"
#include "tests/effort.h"
#include "tests/mma_allowed.h"

namespace poolgrad::attention::testing_support {

constexpr Device gpu{DeviceType::cuda, 0};

INSTANTIATE_TEST_SUITE_P(On, AttendScoresOn, ::testing::Values(gpu), name_of);
INSTANTIATE_TEST_SUITE_P(On, AttendMemoryOn, ::testing::Values(gpu), name_of);

namespace {

/// A dtype, the kernels that compute it, and their error bounds.
struct Arithmetic {
  DType dtype;
  bool mma;
  double tolerance, unit;  // of all numbers; relative, of numbers rounded to the dtype
  Sizes sizes;             // at least two tiles of queries and three of keys

  std::string name() const { return std::string(poolgrad::to_string(dtype)) + (mma ? "_by_mma" : ""); }
  friend void PrintTo(const Arithmetic& x, std::ostream* out) { *out << x.name(); }
};
const Arithmetic all_arithmetic[] = {{DType::f64, false, 1e-12, 0, {1, 37, 70, 4, 2, 6, 5}},
                                     {DType::f32, false, 2e-5, 0, {1, 70, 140, 4, 2, 8, 12}},
                                     {DType::f32, true, 2e-5, 0, {1, 70, 140, 4, 2, 32, 48}},
                                     {DType::bf16, true, 2e-5, 0x1p-8, {1, 70, 140, 4, 2, 32, 32}},
                                     {DType::f16, true, 2e-5, 0x1p-11, {1, 70, 140, 4, 2, 32, 48}}};
/// A brief run takes one of the last two, which use the same kernels.
std::vector<Arithmetic> arithmetic_of_run() {
  std::vector<Arithmetic> result(std::begin(all_arithmetic), std::end(all_arithmetic));
  if (is_brief()) result.erase(result.end() - 1 - static_cast<std::ptrdiff_t>(seed_or(0) % 2));
  return result;
}

class CudaAttend : public ::testing::TestWithParam<Arithmetic> {
 protected:
  /// Compares a call whose operands are rounded to the dtype.
  static void expect_definition(Call call, const Case& one, const std::string& what = "") {
    const Arithmetic& as = GetParam();
    call = rounded(call, as.dtype);
    const Outcome want = defined(call, one.m), rounding = as.unit > 0 ? rounding_of(call, one.m, as.dtype) : Outcome{};
    EXPECT_EQ(difference(attended(call, one.pattern, gpu), want, as.tolerance, rounding, as.unit), "")
        << one.name << what;
  }
  const MmaAllowed allowed_{GetParam().mma};
};

/// f64 takes each pattern with and without causal, f32 alternates; with tensor cores, bf16 does the former and f16 the
/// latter.
TEST_P(CudaAttend, FollowsTheDefinitionOfEveryPattern) {
  const DType dtype = GetParam().dtype;
  bool odd = false;
  for (const Case& one : some_of(pattern_cases())) {
    for (const bool masked : {false, true})
      if (dtype == DType::f64 || masked == (dtype == DType::f16 || (dtype == DType::f32 && odd)))
        expect_definition(make_call(GetParam().sizes), masked ? causal(one) : one);
    odd = !odd;
  }
}

TEST_P(CudaAttend, TakesEveryOptionAloneAndTogether) {
  const Sizes s{1, 33, 70, 4, 2, 16, 16};
  Generator generator(9);
  const std::pair<const char*, std::function<void(AttendOptions&)>> options[] = {
      {"scale", [](AttendOptions& o) { o.scale = -0.75; }},
      {"softcap", [](AttendOptions& o) { o.softcap = 0.5; }},
      {"top left", [](AttendOptions& o) { o.alignment = Alignment::top_left; }},
      {"a gap", [](AttendOptions& o) { o.key_positions = {.gap_begin = 20, .gap = 11}; }},
      {"bias",
       [](AttendOptions& o) {
         o.bias = normal({1, 4, 33, 70}, 3);
       }},
      {"bias of keys",
       [](AttendOptions& o) {
         o.bias = normal({1, 4, 1, 70}, 3);
       }},
      {"alibi", [](AttendOptions& o) { o.alibi = alibi_slopes(4, {.dtype = DType::f64}); }},
      {"padding",
       [](AttendOptions& o) {
         o.key_padding = greater(normal({1, 70}, 5), full({1, 70}, 0.5, {.dtype = DType::f64}));
       }},
      {"sinks", [](AttendOptions& o) { o.sinks = normal({4}, 4); }},
      {"dropout", [&](AttendOptions& o) { o.dropout = 0.25, o.generator = &generator, o.first_batch = 3; }}};
  std::vector<Case> cases;
  for (const char* name : {"dilated nested", "documents & window", "dilated + window"})
    cases.push_back(cases_with(name)[0]);
  Call all = make_call(s);
  for (const auto& [name, set] : options) {
    Call call = make_call(s);
    set(call.options);
    set(all.options);
    for (const Case& one : cases) expect_definition(call, one, std::string(", ") + name);
  }
  for (const Case& one : cases) expect_definition(all, one, ", all at once");
}

TEST_P(CudaAttend, PassesGradientsOfEitherResultAlone) {
  for (const bool out : {true, false}) {
    Call call = make_call({1, 33, 70, 4, 2, 16, 32});
    (out ? call.grad_lse : call.grad_out) = {};
    call.options.sinks = normal({4}, 4);
    for (const char* name : {"dense", "dilated + window"})
      expect_definition(call, cases_with(name)[1], out ? ", of out" : ", of lse");
  }
}

TEST_P(CudaAttend, ZeroWidthRowsFollowTheDefinition) {
  for (const auto& [width, value_width] : {std::pair{0, 32}, {32, 0}, {0, 0}})
    for (const char* name : {"dense", "dilated + window"})
      expect_definition(make_call({1, 33, 70, 4, 2, width, value_width}), cases_with(name)[1]);
}

/// The forward of few queries splits the keys among portable blocks; its gradients use tensor cores.
TEST_P(CudaAttend, FewQueriesAndManyKeysFollowTheDefinition) {
  for (const std::int64_t queries : {1, 3}) {
    Call call = make_call({1, queries, 700, 4, 2, 32, 32});
    call.options.sinks = normal({4}, 4);
    for (const char* name : {"dense", "dilated nested", "window + offsets + sinks"})
      expect_definition(call, cases_with(name)[1], " of " + std::to_string(queries));
  }
}

TEST_P(CudaAttend, GivesResultsOverOperands) {
  Call call = rounded(make_call({2, 70, 70, 4, 2, 32, 32}), GetParam().dtype);
  const Pattern pattern = Pattern::dilated({16, 64}, {1, 2}) & Pattern::causal();
  const Outcome want = attended(call, pattern, gpu);
  call.options.dq_over_out = true;
  Outcome over = attended(call, pattern, gpu);
  over.out = want.out;
  EXPECT_EQ(difference(over, want, 0.0), "");
  const Tensor q = to(call.q, gpu).copy();
  const Attended result = attend(q, to(call.k, gpu), to(call.v, gpu), pattern, {.out_over_q = true});
  EXPECT_TRUE(result.out.shares_storage_with(q));
  EXPECT_TRUE(bit_equal(to(result.out, cpu), want.out));
}

TEST_P(CudaAttend, MakesTheSameRequestsAsASimulatedDeviceInOrder) {
  const Call call = rounded(make_call({1, 70, 140, 4, 2, 32, 48}), GetParam().dtype);
  for (const char* name : {"dense", "dilated nested", "blocks listed", "dilated + window"}) {
    const Case one = cases_with(name)[1];
    const auto asked_on = [&](Device device) {
      const auto leaf = [&](const Tensor& x) { return to(x, device).detach().set_requires_grad(); };
      const Tensor q = leaf(call.q), k = leaf(call.k), v = leaf(call.v);
      CachingAllocator& pool = allocator_for(device);
      pool.trim();
      pool.reset_sequence_hash();
      pool.reset_peaks();
      const Tensor out = attend(q, k, v, one.pattern).out;
      sum(out).backward();
      return std::pair{pool.sequence_hash(), pool.statistics().requested_bytes.peak};
    };
    EXPECT_EQ(asked_on(gpu), asked_on(sim)) << one.name;
  }
}

INSTANTIATE_TEST_SUITE_P(In, CudaAttend, ::testing::ValuesIn(arithmetic_of_run()),
                         [](const auto& info) { return info.param.name(); });

TEST(CudaAttendTwice, HasTheSecondDerivativesOfTheCpu) {
  const Call call = make_call({2, 9, 13, 4, 2, 4, 4});
  const auto run = [&](Device device) {
    Generator generator(7);
    const auto leaf = [&](const Tensor& x) { return to(x, device).detach().set_requires_grad(); };
    const std::vector<Tensor> leaves = {leaf(call.q), leaf(call.k), leaf(call.v), leaf(normal({1, 4, 9, 1}, 3)),
                                        leaf(normal({4}, 4))};
    const auto [out, lse] = attend(leaves[0], leaves[1], leaves[2], Pattern::dilated({4, 8}, {1, 2}),
                                   {.softcap = 2.0,
                                    .bias = leaves[3],
                                    .alibi = alibi_slopes(4, {DType::f64, device}),
                                    .sinks = leaves[4],
                                    .dropout = 0.3,
                                    .generator = &generator});
    Tensor total = zeros({}, {DType::f64, device});
    for (const Tensor& first :
         grad({out, lse}, leaves, {to(call.grad_out, device), to(call.grad_lse, device)}, {.create_graph = true}))
      total = total + sum(first * first);
    std::vector<Tensor> second = grad({total}, leaves);
    for (Tensor& x : second) x = to(x, cpu);
    return second;
  };
  const std::vector<Tensor> there = run(gpu), here = run(cpu);
  for (std::size_t i = 0; i < here.size(); ++i)
    EXPECT_TRUE(allclose(there[i], here[i], 1e-10, 1e-11)) << "operand " << i;
}

TEST(CudaAttendByMma, DiffersFromThePortableKernelsInRounding) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const Call call = rounded(make_call({1, 70, 140, 4, 2, 32, 48}), dtype);
    const auto run = [&](bool mma) {
      const MmaAllowed allowed(mma);
      return attended(call, Pattern::causal(), gpu);
    };
    const Outcome by_mma = run(true), portable = run(false);
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_FALSE(bit_equal(parts(by_mma)[i].second, parts(portable)[i].second)) << parts(portable)[i].first;
  }
}

TEST(CudaAttendOfFewQueries, MakesTheSameRequestsAsASimulatedDeviceInOrder) {
  const Sizes all[] = {{1, 33, 41, 4, 2, 8, 6}, {1, 1, 1100, 4, 2, 8, 6}, {2, 3, 700, 4, 2, 8, 150}};
  for (const Sizes& sizes : all) {
    const Call call = make_call(sizes, DType::bf16);
    for (const char* name : {"dense", "dilated nested", "dilated + window"})
      for (const Case& one : cases_with(name)) {
        const auto hash_on = [&](Device device) {
          const Tensor q = to(call.q, device).detach().set_requires_grad(), k = to(call.k, device),
                       v = to(call.v, device);
          CachingAllocator& pool = allocator_for(device);
          pool.reset_sequence_hash();
          const Tensor out = attend(q, k, v, one.pattern, {}).out;
          sum(out).backward();
          return pool.sequence_hash();
        };
        EXPECT_EQ(hash_on(gpu), hash_on(sim)) << one.name << " " << to_string(sizes);
      }
  }
}

}  // namespace
}  // namespace poolgrad::attention::testing_support
