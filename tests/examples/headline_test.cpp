// The headline program, from names of rows to tables, JSON and page.
#include "examples/headline/headline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "allocator/error.h"
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

TEST(Headline, CountsTheBytesOfRowsThatExceedMemory) {
  const auto row = row_of({.rows = {"bsr-1048576"}, .memory = "64MiB"});
  EXPECT_TRUE(row["simulated"]);
  EXPECT_TRUE(row["milliseconds"].is_null());
  EXPECT_EQ(row["formula_bytes"], 1048576.0 * (4 * 1024 + 32));
  EXPECT_GE(row["peak_bytes"], row["formula_bytes"]);
  EXPECT_LE(row["peak_bytes"].get<double>(), 1.01 * row["formula_bytes"].get<double>());
  EXPECT_TRUE(row["original"]["out_of_memory"]);
}

TEST(Headline, FindsTheLongestSequenceWithAndWithoutAPool) {
  const double pool = row_of({.rows = {"longest-pool"}})["formula_bytes"],
               none = row_of({.rows = {"longest-no-pool"}})["formula_bytes"];
  constexpr double capacity = 8.0 * (1 << 30);
  EXPECT_GT(pool, 0.99 * capacity);
  EXPECT_LE(pool, capacity);
  EXPECT_NEAR(pool / none, 1.0, 0.01);
}

TEST(Headline, ComputesChunksOfABillionTokensAndChecksThem) {
  for (const char* name : {"billion-grouped", "billion-ring"}) {
    const auto row = row_of({.rows = {name}, .dtype = "f32", .seconds = 0.01});
    EXPECT_GE(row["calls"], 1) << name;
    EXPECT_LT(row["worst_error"], 1e-5) << name;
    EXPECT_THAT(row["remark"].get<std::string>(), HasSubstr("extrapolated")) << name;
  }
}

TEST(Headline, ComparesVaryingShapesBitByBit) {
  EXPECT_THAT(row_of({.rows = {"shapes"}})["remark"].get<std::string>(), HasSubstr("same bits"));
}

TEST(Headline, PrintsATableWithTheOriginalsFigures) {
  EXPECT_THAT(run({.rows = {"improved-1K"}}), AllOf(HasSubstr("attended over heads"), HasSubstr("improved-1K"),
                                                    HasSubstr("0.52"), HasSubstr("theirs ms")));
}

TEST(Headline, WritesAPage) {
  const std::string page = run({.rows = {"improved-1K"}, .html = "-", .quiet = true});
  EXPECT_THAT(page, AllOf(testing::StartsWith("<!doctype html>"), HasSubstr("<td>improved-1K</td>"),
                          testing::EndsWith("</body></html>\n")));
}

TEST(Headline, RefusesBadOptions) {
  EXPECT_THAT(error_of<ValueError>([] { run({.rows = {"nothing"}}); }), HasSubstr("--rows matches no row: nothing"));
  EXPECT_THAT(error_of<ValueError>([] { run({.seconds = 0}); }), HasSubstr("--seconds must be positive, but is 0"));
  EXPECT_THAT(error_of<ValueError>([] { run({.device = "sim:1GiB"}); }),
              HasSubstr("--device must be cpu, cuda:N or auto"));
  EXPECT_THAT(error_of<ValueError>([] { run({.dtype = "i64"}); }), HasSubstr("--dtype must be floating, but is i64"));
  EXPECT_EQ(error_of<ValueError>([] { run({.json = "./a", .html = "a"}); }), "[headline] --json and --html are both a");
}

}  // namespace
}  // namespace poolgrad::examples
