// What a trace says of an allocation: which operator made it, and which line of this file asked for that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <tuple>

#include "allocator/caching_allocator.h"
#include "allocator/memory_scope.h"
#include "autograd/operators.h"
#include "nn/layers.h"
#include "nn/optimizer.h"
#include "tensor/creation.h"

namespace poolgrad::nn {
namespace {

using ::testing::_;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// File name, line, operator.
using Place = std::tuple<std::string, unsigned, std::string>;

/// Where the tensors that `body` makes come from; scratch of kernels is left out.
std::set<Place> places(const std::function<void()>& body) {
  CachingAllocator& pool = allocator_for(cpu);
  pool.start_trace();
  body();
  pool.stop_trace();
  const Trace trace = pool.trace();
  std::set<Place> found;
  for (const TraceEvent& event : trace.events) {
    if (event.kind != TraceKind::allocate || event.category == Category::workspace) continue;
    const TraceLocation& at = trace.locations[event.location];
    found.emplace(at.file.substr(at.file.rfind('/') + 1), at.line, function_name(at.function));
  }
  return found;
}

Place here(unsigned line, const std::string& name) { return {"call_site_test.cpp", line, name}; }

TEST(CallSites, NameTheOperatorAndTheLineThatCalledIt) {
  const Tensor a = ones({8, 9}), b = ones({9, 7});
  Tensor y;
  EXPECT_THAT(places([&] { y = matmul(a, b); }), ElementsAre(here(__LINE__, "poolgrad::matmul")));
  EXPECT_THAT(places([&] { y = softmax(a); }), ElementsAre(here(__LINE__, "poolgrad::softmax")));
  EXPECT_THAT(places([&] { y = zeros({3}); }), ElementsAre(here(__LINE__, "poolgrad::zeros")));
  EXPECT_THAT(places([&] { y = a.copy(); }), ElementsAre(here(__LINE__, "poolgrad::Tensor::copy")));
}

TEST(CallSites, NameWhatIsWrittenAsASymbolAndItsLine) {
  const Tensor a = ones({8, 9});
  Tensor y;
  EXPECT_THAT(places([&] { y = a + a; }), ElementsAre(here(__LINE__, "poolgrad::add")));
  EXPECT_THAT(places([&] { y = a + 1.0; }), ElementsAre(here(__LINE__, "poolgrad::operator+")));
  EXPECT_THAT(places([&] { y = a / 2.0; }), ElementsAre(here(__LINE__, "poolgrad::operator/")));
  EXPECT_THAT(places([&] { y = 2.0 * -a; }),
              UnorderedElementsAre(here(__LINE__ - 1, "poolgrad::neg"), here(__LINE__ - 1, "poolgrad::operator*")));
  const Tensor leaf = ones({8, 9}).set_requires_grad();
  Tensor sum = leaf * 1.0;
  EXPECT_THAT(places([&] { sum += 1.0; }), ElementsAre(here(__LINE__, "poolgrad::operator+=")));
}

TEST(CallSites, NameTheLineOfEveryKindOfOperator) {
  const Tensor a = ones({8, 9}), index = zeros({8, 9}, {.dtype = DType::i64});
  Tensor y;
  EXPECT_THAT(places([&] { y = exp(a); }), ElementsAre(here(__LINE__, "poolgrad::exp")));
  EXPECT_THAT(places([&] { y = gelu(a); }), ElementsAre(here(__LINE__, "poolgrad::gelu")));
  EXPECT_THAT(places([&] { y = sum(a, 1); }), ElementsAre(here(__LINE__, "poolgrad::sum")));
  EXPECT_THAT(places([&] { y = max(a, 1); }), ElementsAre(here(__LINE__, "poolgrad::max")));
  EXPECT_THAT(places([&] { y = where(a > 0.5, a, a); }), Contains(here(__LINE__, "poolgrad::where")));
  EXPECT_THAT(places([&] { y = gather(a, 1, index); }), ElementsAre(here(__LINE__, "poolgrad::gather")));
  EXPECT_THAT(places([&] { y = clone(a); }), ElementsAre(here(__LINE__, "poolgrad::Tensor::copy")));
  EXPECT_THAT(places([&] { y = roll(a, 1, 0); }), Each(FieldsAre("call_site_test.cpp", __LINE__, _)));
  EXPECT_THAT(places([&] { y = sort(a).values; }), Each(FieldsAre("call_site_test.cpp", __LINE__, _)));
  EXPECT_THAT(places([&] { y = cat({a, a}); }), ElementsAre(here(__LINE__, "poolgrad::cat")));
}

TEST(CallSites, OfWhatIsPassedAroundAreWhereItIsCalledAndTheOutermostCounts) {
  const Tensor a = ones({8, 9});
  Tensor y;
  const auto apply = [&](Tensor (*function)(Argument)) { y = function(a); };
  const unsigned called = __LINE__ - 1;
  EXPECT_THAT(places([&] { apply(exp); }), ElementsAre(here(called, "poolgrad::exp")));
  const CallSite site;
  const unsigned declared = __LINE__ - 1;
  EXPECT_THAT(places([&] { apply(exp); }), ElementsAre(here(declared, "poolgrad::exp")));
  EXPECT_THAT(places([&] { y = a + a; }), ElementsAre(here(declared, "poolgrad::add")));
  EXPECT_THAT(places([&] { y = matmul(a, transpose(a, 0, 1)); }), ElementsAre(here(declared, "poolgrad::matmul")));
}

TEST(CallSites, PutTheWorkOfAModuleDownToTheLineThatCalledIt) {
  Linear layer(9, 7);
  const Tensor x = ones({8, 9});
  Tensor y;
  const unsigned line = __LINE__ + 1;
  EXPECT_THAT(places([&] { y = layer(x); }), Contains(here(line, "poolgrad::linear")));
}

TEST(CallSites, NameTheBackwardOfAnOperatorAndTheLineOfItsForward) {
  const Tensor a = ones({8, 9}).set_requires_grad(), b = ones({9, 7}).set_requires_grad();
  const unsigned forward = __LINE__ + 1;
  const Tensor y = matmul(a, b);
  const Tensor loss = sum(y);
  const unsigned backward = __LINE__ + 1;
  const std::set<Place> found = places([&] { loss.backward(); });
  EXPECT_THAT(found, Contains(here(forward, "matmul backward")));
  for (const auto& [file, line, name] : found) {
    EXPECT_EQ(file, "call_site_test.cpp") << name;
    EXPECT_TRUE(line == forward || line == backward) << line << " " << name;
  }
}

TEST(CallSites, AreThoseOfTheStepInAnOptimizer) {
  const Tensor wide = ones({4, 6});
  Tensor parameter = transpose(wide, 0, 1).detach().set_requires_grad();
  parameter.set_grad(ones({6, 4}));
  SGD optimizer({{"w", parameter}});
  const unsigned line = __LINE__ + 1;
  for (const auto& [file, at, name] : places([&] { optimizer.step(); })) {
    EXPECT_EQ(file, "call_site_test.cpp") << name;
    EXPECT_EQ(at, line) << name;
  }
}

TEST(CallSites, AreNeverThoseOfTheFloorsBelow) {
  Linear layer(9, 7);
  const Tensor x = randn({8, 9});
  const std::set<Place> found = places([&] {
    const Tensor loss = mean(square(gelu(layer(x)) - 1.0));
    loss.backward();
  });
  EXPECT_GT(found.size(), 4u);
  for (const auto& [file, line, name] : found) {
    EXPECT_NE(file, "tensor.cpp") << name;
    EXPECT_NE(file, "caching_allocator.cpp") << name;
  }
}

}  // namespace
}  // namespace poolgrad::nn
