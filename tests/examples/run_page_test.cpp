// The page of a training run, and the charts and tables of pages.
#include "examples/train/run_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>

#include "examples/plan/plan.h"
#include "examples/support/chart.h"
#include "examples/support/html.h"
#include "examples/support/train.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::read_bytes;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

std::size_t times_in(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class RunPageTest : public ::testing::Test {
 protected:
  RunPageTest() {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "<b>" + std::to_string(i * i % 97) + "</b> & more;\n";
    write_bytes(folder_.file("text"), text);
    options_.text = {folder_.file("text")};
    options_.context = 128;
    options_.layers = 2;
    options_.width = 32;
    options_.kv_heads = 2;
    options_.steps = 12;
    options_.report = 4;
    options_.sample = 16;
  }

  /// Returns the pages in the order in which they were written.
  std::vector<std::string> pages(bool live) {
    const std::string path = folder_.file("run.html");
    std::ostringstream out;
    std::vector<std::string> result;
    TrainOptions options = options_;
    options.html = path;
    options.live_page = live;
    write_page_of_run(options);
    options.reported = [&, write = options.reported](nn::Trainer& trainer, nn::TrainResult& run, bool finished) {
      std::filesystem::remove(path);
      write(trainer, run, finished);
      if (std::filesystem::exists(path)) result.push_back(read_bytes(path));
    };
    train(options, out);
    printed_ = out.str();
    return result;
  }

  TemporaryFolder folder_;
  TrainOptions options_;
  std::string printed_;
};

TEST_F(RunPageTest, ShowsTheWholeRunInOneSelfContainedFile) {
  const std::vector<std::string> written = pages(false);
  ASSERT_EQ(written.size(), 1u);
  const std::string& page = written[0];
  EXPECT_THAT(page,
              AllOf(Not(HasSubstr("http")), Not(HasSubstr("<script")), Not(HasSubstr("url(")), Not(HasSubstr("src="))));
  for (const char* part :
       {"prefers-color-scheme: dark", "width=device-width", "<h2>Loss</h2>", "<h2>Loss by position</h2>",
        "<h2>Speed</h2>", "<h2>Gradient norm</h2>", "<h2>Learning rate</h2>", "<h2>Memory over one step</h2>",
        "<h2>Attention maps</h2>", "<h2>Sample</h2>", "<h2>Options and machine</h2>", "finished after 12 steps",
        ">trigram</text>", "optimizer_state", "<dt>instruction_set</dt>", "backward"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_EQ(times_in("class=\"shades\"", page), 2 * 4u) << "every head of every block";
  EXPECT_EQ(times_in("</b> & more", page), 0u) << "the text is text";
  EXPECT_GT(times_in("&lt;b&gt;", page), 0u);
  EXPECT_THAT(printed_, HasSubstr("wrote    page " + folder_.file("run.html")));
}

TEST_F(RunPageTest, ListsEveryOptionOfTheProgram) {
  const char* help[] = {"train", "--help"};
  TrainOptions options;
  testing::internal::CaptureStdout();
  parse_train_options(2, help, options);
  std::istringstream lines(testing::internal::GetCapturedStdout());
  const std::string page = pages(false).at(0);
  std::size_t listed = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find("--");
    if (begin == std::string::npos || line.find_first_not_of(" ") != begin) continue;
    std::string name = line.substr(begin + 2, line.find_first_of(" ,=", begin) - begin - 2);
    if (name == "help" || name == "preset") continue;  // a preset only sets other options
    std::ranges::replace(name, '-', '_');
    EXPECT_THAT(page, HasSubstr("<dt>" + name + "</dt>"));
    ++listed;
  }
  EXPECT_GT(listed, 50u);
  for (const char* part : {"<dt>segments</dt><dd>256, 256, 256</dd>", "<dt>rates</dt><dd>1, 2, 4</dd>",
                           "<dt>sample</dt><dd>16</dd>", "<dt>save</dt><dd>none</dd>", "<dt>live</dt><dd>off</dd>"})
    EXPECT_THAT(page, HasSubstr(part));
}

TEST_F(RunPageTest, DrawsTheRequestedHeadsBesideTheirText) {
  options_.html_heads = {"1:3", "0:2"};
  const std::string page = pages(false).at(0);
  EXPECT_EQ(times_in("class=\"shades\"", page), 2 * 4 + 2u);
  EXPECT_EQ(times_in("class=\"token\"", page), 2 * 2 * 64u) << "beside and above both";
  EXPECT_LT(page.find("block 1, head 3"), page.find("block 0, head 2")) << "in the order in which they are named";
  EXPECT_LT(page.find("block 0, head 2"), page.find("block 0, head 0"));
}

TEST_F(RunPageTest, MapsChosenHeadsOfALargeModel) {
  options_.layers = 6;
  options_.width = 80;
  options_.heads = 10;
  options_.kv_heads = 10;
  Generator generator(1);
  const auto trainer = options_.make_trainer(nn::read_corpus(options_.text), cpu, generator);
  const std::vector<std::int64_t> tokens = map_tokens(*trainer, "a text");
  const std::vector<AttentionMap> maps = attention_maps(*trainer, tokens, {{5, 9}, {2, 1}});
  ASSERT_EQ(maps.size(), 2 + 4 * 8u);
  EXPECT_TRUE(maps[0].large && maps[0].block == 5 && maps[0].head == 9);
  EXPECT_EQ(maps[1].weights, maps[2 + 2 * 8 + 1].weights) << "the same head, small";
  EXPECT_NE(maps[0].weights, maps[1].weights);
}

/// As a user runs it: `train` starts the program that shows runs.
TEST_F(RunPageTest, IsWrittenByTheProgram) {
  const std::string page = folder_.file("program.html");
  const auto run = [&](const std::string& heads) {
    return std::system((std::string(POOLGRAD_TRAIN_PROGRAM) + " --text " + folder_.file("text") +
                        " --context 64 --layers 1 --width 16 --heads 2 --steps 4 --sample 8 --quiet --live --html " +
                        page + " --html-head " + heads + " 2>" + folder_.file("errors"))
                           .c_str());
  };
  ASSERT_EQ(run("0:1"), 0) << read_bytes(folder_.file("errors"));
  const std::string written = read_bytes(page);
  EXPECT_THAT(written, AllOf(HasSubstr("finished after 4 steps"), HasSubstr("<dt>html_head</dt><dd>0:1</dd>"),
                             HasSubstr("class=\"token\""), HasSubstr("Loss by position"), HasSubstr("</html>")));
  EXPECT_EQ(times_in("class=\"shades\"", written), 2 + 1u);
  EXPECT_NE(run("0:1,0:2"), 0);
  EXPECT_EQ(read_bytes(folder_.file("errors")), "[train] --html-head must be BLOCK:HEAD from 0:0 to 0:1, but is 0:2\n");
}

TEST_F(RunPageTest, IsRewrittenAtEachLineAndReloadsUntilTheEnd) {
  const std::vector<std::string> written = pages(true);
  ASSERT_EQ(written.size(), 1 + 3 + 1u) << "after steps 1, 4, 8, 12 and at the end";
  EXPECT_THAT(written[1],
              AllOf(HasSubstr("http-equiv=\"refresh\""), HasSubstr("step 4 of 12"), HasSubstr(">trigram</text>"),
                    HasSubstr("Memory over one step"), Not(HasSubstr("Loss by position"))));
  EXPECT_THAT(written[0], Not(HasSubstr("Memory over one step"))) << "the first step is like no other";
  EXPECT_THAT(written.back(), AllOf(Not(HasSubstr("http-equiv")), HasSubstr("Loss by position")));
}

TEST_F(RunPageTest, HasNoMapsOnASimulatedDevice) {
  options_.device = "sim:1GiB";
  EXPECT_THAT(pages(false).at(0), AllOf(Not(HasSubstr("Attention maps")), HasSubstr("Memory over one step")));
}

TEST_F(RunPageTest, MapsOfEveryKindAreCausalWeights) {
  options_.steps = 1;
  for (const std::string& name : attention_names()) {
    options_.attention.attention = name;
    options_.attention.ring_size = 2;
    Generator generator(1);
    const auto trainer = options_.make_trainer(nn::read_corpus(options_.text), cpu, generator);
    const std::string text = "what a head looks at in forty-one bytes..";
    const std::vector<AttentionMap> maps = attention_maps(*trainer, map_tokens(*trainer, text));
    ASSERT_EQ(maps.size(), options_.attention.is_recurrent() ? 0u : 8u) << name;
    for (const AttentionMap& map : maps)
      for (std::size_t row = 0; row < text.size(); ++row) {
        double before = 0, behind = 0;
        for (std::size_t column = 0; column < text.size(); ++column)
          (column <= row ? before : behind) += map.weights[row * text.size() + column];
        if (name == "nsa") {  // the sum of three gates, each within (0, 1)
          ASSERT_GT(before, 0.0) << "row " << row;
          ASSERT_LT(before, 3.0) << "row " << row;
        } else {
          ASSERT_NEAR(before, 1.0, 1e-5) << name << " row " << row;
        }
        ASSERT_EQ(behind, 0.0) << name << " row " << row;
      }
  }
}

TEST(Chart, NamesTheValuesAtAPointAndOmitsNaN) {
  Chart chart{
      .x_name = "step", .series = {{"loss", {{1, 4.0}, {2, std::nan("")}, {3, 2.0}}}}, .levels = {{"bigram", 2.5}}};
  const std::string svg = chart_svg(chart);
  EXPECT_THAT(svg, AllOf(HasSubstr("<title>step 1\nloss 4</title>"), HasSubstr("<title>step 3\nloss 2</title>"),
                         HasSubstr(">bigram</text>"), Not(HasSubstr("nan"))));
  chart.series[0].points = {{5, std::numeric_limits<double>::infinity()}};
  EXPECT_EQ(chart_svg(chart), "");
  chart.series[0].points = {{5, 0.0}};
  EXPECT_THAT(chart_svg(chart), AllOf(HasSubstr("<circle"), Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(Chart, StacksTheNamesOfCloseLevels) {
  const std::string svg = chart_svg({.x_name = "step",
                                     .series = {{"loss", {{1, 4.0}, {3, 0.0}}}},
                                     .levels = {{"unigram", 3}, {"bigram", 0.52}, {"trigram", 0.5}},
                                     .height = 250});
  const auto height_of = [&](const std::string& name) {
    const std::size_t end = svg.find("\">" + name + "</text>"), begin = svg.rfind('"', end - 1) + 1;
    return std::stod(svg.substr(begin, end - begin));
  };
  EXPECT_NEAR(height_of("trigram") - height_of("bigram"), 14, 0.11);
  EXPECT_GT(height_of("bigram") - height_of("unigram"), 100);
}

TEST(Chart, PutsEqualRatiosAtEqualDistancesOnALogarithmicAxis) {
  const std::string svg = chart_svg({.x_name = "bytes",
                                     .series = {{"", {{1, 1}, {2, 1}, {4, 10}, {1024, 100}}, 0, Series::Kind::dots}},
                                     .log_x = true,
                                     .log_y = true,
                                     .width = 582});  // 500 between the margins
  for (const char* x : {"cx=\"58.0\"", "cx=\"108.0\"", "cx=\"158.0\"", "cx=\"558.0\""}) EXPECT_THAT(svg, HasSubstr(x));
  for (const char* tick : {">1</text>", ">10</text>", ">100</text>", ">4</text>"}) EXPECT_THAT(svg, HasSubstr(tick));
}

TEST(Chart, LabelsAnIntegerAxisWithIntegers) {
  Chart chart{.x_name = "step", .series = {{"", {{1, 5}, {2, 6}}}}, .width = 560};
  EXPECT_THAT(chart_svg(chart), HasSubstr(">1.2</text>"));
  chart.whole_x = true;
  EXPECT_THAT(chart_svg(chart), AllOf(HasSubstr(">1</text>"), HasSubstr(">2</text>"), Not(HasSubstr(">1.2</text>"))));
}

TEST(Chart, WrapsAWideLegend) {
  Chart chart{.x_name = "step", .series = {}};
  for (const char* name : {"causal", "block_sparse", "global_local", "dilated", "strided"})
    chart.series.push_back({name, {{1, 5}, {2, 6}}});
  const std::string svg = chart_svg(chart);
  const auto x_of = [&](const std::string& name) {
    const std::size_t end = svg.find("\">" + name + "</text>"), y = svg.rfind("y=\"", end),
                      x = svg.rfind("x=\"", y) + 3;
    return std::pair(std::stod(svg.substr(x)), std::stod(svg.substr(y + 3)));
  };
  EXPECT_EQ(x_of("causal"), std::pair(79.0, 15.0));
  EXPECT_EQ(x_of("dilated"), std::pair(79.0, 33.0)) << "the first of the second line";
  for (const Series& series : chart.series)
    EXPECT_LT(x_of(series.name).first + 7.0 * static_cast<double>(series.name.size()), chart.width) << series.name;
}

TEST(StepPicture, IsDrawnByTimeWhenTheTraceHasTimes) {
  Trace trace;
  trace.scopes = {"", "backward"};
  for (const std::uint64_t time : {0u, 900u, 1000u})
    trace.events.push_back(
        {.time = time, .allocation = trace.events.size() + 1, .address = 4096 * (time + 1), .size = 64});
  trace.events[1].scope = 1;
  const auto mark_of = [&](bool by_time) {
    const std::string svg = step_svg(picture_of(trace, 100, by_time), std::size_t{1} << 40, 1084, 100);
    EXPECT_EQ(svg.find("1.00 us in all") != std::string::npos, by_time);
    const std::size_t end = svg.find("<title>backward</title>"), begin = svg.rfind("x1=\"", end) + 4;
    return std::stod(svg.substr(begin));
  };
  EXPECT_EQ(mark_of(true), 84 + 900);
  EXPECT_EQ(mark_of(false), 84 + 500) << "the second of three requests";
}

TEST(Chart, ThinsToMeansAndSmoothsBackwards) {
  const Points points{{0, 1}, {1, 3}, {2, 5}, {3, 11}};
  EXPECT_EQ(thinned(points, 2), (Points{{0.5, 2}, {2.5, 8}}));
  EXPECT_EQ(thinned(points, 4), points);
  EXPECT_EQ(running_mean(points, 2), (Points{{0, 1}, {1, 2}, {2, 4}, {3, 8}}));
}

TEST(Html, EncodesBytesAsRfc4648Does) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xff\xfe"), "//4=");
}

TEST(Html, ImagesAreBottomUpBitmapsWithPaddedRows) {
  const std::string header("BM\x46\x04\0\0\0\0\0\0\x36\x04\0\0\x28\0\0\0\3\0\0\0\4\0\0\0",
                           26);  // 3 x 4, pixels from 1078
  const std::string url = image_url({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 3);
  EXPECT_THAT(url, ::testing::StartsWith("data:image/bmp;base64," + base64(header.substr(0, 24))));
  EXPECT_THAT(url, ::testing::EndsWith(base64(std::string("\10\11\0\4\5\6\0\1\2\3\0", 11))))
      << "10 to 12, 7 come before";
}

}  // namespace
}  // namespace poolgrad::examples
