// The headline program, from names of rows to tables and JSON.
#include "examples/headline/headline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/simulated_memory.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::error_of;

std::string run(HeadlineOptions options) {
  std::ostringstream out;
  run_headline(options, out, false);
  return out.str();
}

/// Returns the only row of the answer.
nlohmann::json row_of(HeadlineOptions options) {
  options.json = "-";
  const auto answer = nlohmann::json::parse(run(std::move(options)));
  EXPECT_EQ(answer["groups"].size(), 1u);
  EXPECT_EQ(answer["groups"][0]["rows"].size(), 1u);
  return answer["groups"][0]["rows"][0];
}

TEST(Headline, GivesEveryRowAUniqueName) {
  std::set<std::string> names;
  for (const Group& group : headline_groups())
    for (const Row& row : group.rows) EXPECT_TRUE(names.insert(row.id).second) << row.id;
  EXPECT_THAT(names, testing::Contains("bsr-786432"));
}

TEST(Headline, ListsItsRows) {
  EXPECT_THAT(run({.rows = {"extreme"}, .list = true}),
              AllOf(HasSubstr("extreme: "), HasSubstr("bsr-1150000-training")));
}

TEST(Headline, SkipsRowsThatExceedMemoryOrTime) {
  Row row{"row", "a row", {}, attention::Pattern::dilated_sparse(64), 1024};
  Bench bench{.memory = 1024 * (4 * 1024 + 32)};
  const Json large = measure(row, bench);
  EXPECT_EQ(large["formula_bytes"], 1024.0 * (4 * 1024 + 32));
  EXPECT_TRUE(large["milliseconds"].is_null());
  EXPECT_EQ(large["remark"], "needs more than 4.03 MiB");
  bench.memory *= 2;
  const Json small = measure(row, bench);
  EXPECT_GT(small["milliseconds"], 0);
  EXPECT_EQ(small["calls"], 5);
  EXPECT_GE(small["peak_bytes"], small["formula_bytes"]);
  EXPECT_LE(small["peak_bytes"].get<double>(), 1.5 * small["formula_bytes"].get<double>());
  bench.row_seconds = 1e-9;
  const Json slow = measure(row, bench);
  EXPECT_TRUE(slow["milliseconds"].is_null());
  EXPECT_THAT(slow["remark"].get<std::string>(), HasSubstr("above --row-seconds"));
}

TEST(Headline, ExtremeRowsFitTheOriginalCard) {
  constexpr int fresh = 50;  // scratch of other tests would count
  Bench bench{.device = {DeviceType::sim, fresh}, .row_seconds = 1e9, .memory = std::size_t{1} << 40};
  configure_simulated_device(fresh, std::size_t{16} << 30, "cpu");
  const Group extreme = headline_groups()[2];
  ASSERT_EQ(extreme.id, "extreme");
  for (Row row : extreme.rows) {
    const Json result = measure(row, bench);
    ASSERT_EQ(result["remark"], "") << row.id;
    const double peak = result["peak_bytes"], formula = result["formula_bytes"];
    EXPECT_GE(peak, formula) << row.id;
    EXPECT_LE(peak, std::min(1.03 * formula, 8.0 * (1 << 30))) << row.id;
    row.tokens *= 8'600'000'000 / static_cast<std::int64_t>(formula) + 1;
    EXPECT_EQ(measure(row, bench)["remark"], "out of memory within 8GiB") << row.id;
  }
}

TEST(Headline, ComputesChunksOfABillionTokensAndChecksThem) {
  for (const char* name : {"billion-grouped", "billion-ring"}) {
    const auto row = row_of({.rows = {name}, .dtype = "f32", .seconds = 0.01});
    EXPECT_GE(row["calls"], 1) << name;
    EXPECT_LT(row["worst_error"], 1e-5) << name;
    EXPECT_THAT(row["remark"].get<std::string>(), HasSubstr("extrapolated")) << name;
  }
}

TEST(Headline, RunsVaryingShapesWithThePoolAndWithout) {
  for (const char* const name : {"shapes-with-pool", "shapes-released"})
    EXPECT_GT(row_of({.rows = {name}})["milliseconds"], 0) << name;
}

TEST(Headline, PrintsATableWithTheOriginalsFigures) {
  EXPECT_THAT(run({.rows = {"improved-1K"}}), AllOf(HasSubstr("attended over heads"), HasSubstr("improved-1K"),
                                                    HasSubstr("0.52"), HasSubstr("theirs ms")));
}

TEST(Headline, RefusesBadOptions) {
  EXPECT_THAT(error_of<ValueError>([] { run({.rows = {"nothing"}}); }), HasSubstr("--rows matches no row: nothing"));
  EXPECT_THAT(error_of<ValueError>([] { run({.seconds = 0}); }), HasSubstr("--seconds must be positive, but is 0"));
  EXPECT_THAT(error_of<ValueError>([] { run({.device = "sim:1GiB"}); }),
              HasSubstr("--device must be cpu, cuda:N or auto"));
  EXPECT_THAT(error_of<ValueError>([] { run({.dtype = "i64"}); }), HasSubstr("--dtype must be floating, but is i64"));
}

}  // namespace
}  // namespace poolgrad::examples
