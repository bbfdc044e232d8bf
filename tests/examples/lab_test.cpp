// The laboratory's commands, called as from a program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "allocator/lab/formats/trace_file.h"
#include "allocator/lab/replay/policy.h"
#include "allocator/lab/zoo/zoo.h"
#include "examples/lab/lab.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using testing_support::read_bytes;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

struct Answer {
  int code = -1;
  std::string out, errors;

  /// Returns the error: one sentence on one line.
  std::string sentence() const {
    EXPECT_EQ(code, 1);
    EXPECT_THAT(out, IsEmpty());
    EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
    return errors;
  }
};

Answer lab(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv{"lab"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out, errors;
  const int code = run_lab(static_cast<int>(argv.size()), argv.data(), out, errors);
  return {code, out.str(), errors.str()};
}

/// Runs a command that must succeed and returns its JSON.
json answer_of(std::vector<std::string> arguments, int code = 0) {
  arguments.push_back("--json");
  const Answer answer = lab(arguments);
  EXPECT_EQ(answer.code, code) << answer.errors;
  return json::parse(answer.out);
}

class Lab : public ::testing::Test {
 protected:
  /// A recording of one small training step.
  static const std::string& recording() {
    static const TemporaryFolder folder;
    static const std::string path = [] {
      const std::string file = folder.file("small.pgt");
      const Answer answer = lab({"record", "--size", "small", "--steps", "1", "-o", file, "--quiet"});
      EXPECT_EQ(answer.code, 0) << answer.errors;
      EXPECT_THAT(answer.out, IsEmpty());
      return file;
    }();
    return path;
  }

  TemporaryFolder folder_;
};

TEST_F(Lab, PrintsHelpForItselfAndEveryCommand) {
  EXPECT_THAT(lab({"--help"}).out, AllOf(HasSubstr("record"), HasSubstr("demo-oom"), HasSubstr("zoo:NAME")));
  for (const char* command : {"record", "replay", "compare", "report", "demo-oom", "export", "list"}) {
    const Answer answer = lab({command, "--help"});
    EXPECT_EQ(answer.code, 0) << command;
    EXPECT_THAT(answer.out, AllOf(HasSubstr("--json"), HasSubstr("--quiet"))) << command;
  }
}

TEST_F(Lab, PrintsThePolicyParametersInHelp) {
  for (const char* command : {"replay", "compare"}) {
    const std::string help = lab({command, "--help"}).out;
    for (const PolicyEntry& policy : policies()) {
      for (const PolicyParameter& parameter : policy.parameters) {
        EXPECT_THAT(help, HasSubstr(":" + std::string(parameter.name) + "= " + std::string(parameter.description)));
      }
    }
  }
}

TEST_F(Lab, EndsWithCode2OnABadCommandLine) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"frobnicate"},
                                             {"replay"},
                                             {"record", "--steps", "many", "-o", "x"},
                                             {"report", "zoo:checkerboard"},
                                             {"export", "a", "-o", "b", "--format", "xml"},
                                             {"record", "--workload", "dance", "-o", "x"},
                                             {"list", "--colour"}}) {
    const Answer answer = lab(arguments);
    EXPECT_EQ(answer.code, 2) << answer.out;
    EXPECT_FALSE(answer.errors.empty());
  }
}

TEST_F(Lab, ListsPoliciesAndWorkloads) {
  const Answer answer = lab({"list"});
  const json listed = answer_of({"list"});
  EXPECT_EQ(listed["policies"].size(), policies().size());
  EXPECT_EQ(listed["workloads"].size(), trace_zoo().size());
  for (const json& policy : listed["policies"]) {
    EXPECT_THAT(answer.out, HasSubstr(policy["name"].get<std::string>()));
    EXPECT_THAT(answer.out, HasSubstr(policy["description"].get<std::string>()));
  }
  EXPECT_THAT(answer.out, HasSubstr("zoo:checkerboard"));
}

TEST_F(Lab, RecordsTrainingWithStepsCategoriesAndCallSites) {
  const Trace trace = load_trace(recording());
  std::size_t allocations = 0, steps = 0, parameters = 0, placed = 0, backwards = 0;
  for (const TraceEvent& event : trace.events) {
    steps += event.kind == TraceKind::step;
    if (event.kind != TraceKind::allocate) continue;
    ++allocations;
    parameters += event.category == Category::parameter;
    placed += event.scope != 0;
    const TraceLocation& at = trace.locations[event.location];
    EXPECT_EQ(at.file.find("tensor/tensor.cpp"), std::string::npos) << at.function;
    backwards += at.function.ends_with(" backward");
  }
  EXPECT_EQ(steps, 1u);
  EXPECT_GT(allocations, 50u);
  EXPECT_GT(parameters, 10u);
  EXPECT_GT(placed, 10u);
  EXPECT_GT(backwards, 10u);
}

TEST_F(Lab, RecordsAttentionAndGenerationOnASimulatedDevice) {
  for (const char* workload : {"attention", "generate"}) {
    const std::string file = folder_.file("a.pgt");
    const json answer = answer_of(
        {"record", "--workload", workload, "--size", "small", "--steps", "3", "--device", "sim:1GiB", "-o", file});
    EXPECT_GT(answer["events"], 10) << workload;
    EXPECT_EQ(answer["bytes"], std::filesystem::file_size(file));
    EXPECT_EQ(load_trace(file).device.type, DeviceType::sim);
  }
}

TEST_F(Lab, RecordsARunThatRunsOutOfMemory) {
  const std::string file = folder_.file("oom.pgt");
  const json answer = answer_of(
      {"record", "--size", "default", "--steps", "1", "--device", "sim:1GiB", "--budget", "16MiB", "-o", file}, 3);
  EXPECT_EQ(answer["out_of_memory"], true);
  const Trace trace = load_trace(file);
  EXPECT_TRUE(std::any_of(trace.events.begin(), trace.events.end(),
                          [](const TraceEvent& event) { return event.kind == TraceKind::out_of_memory; }));
}

TEST_F(Lab, ReplaysARecordingAndAZooWorkload) {
  for (const std::string& source : {recording(), std::string("zoo:checkerboard")}) {
    const json answer = answer_of({"replay", source, "--policy", "lower-bound", "--find-min-capacity"});
    EXPECT_EQ(answer["policy"], "lower-bound");
    const auto bound = answer["lower_bound"].get<std::size_t>();
    EXPECT_EQ(bound % (2u << 20), 0u);
    EXPECT_LT(bound - answer["peak_requested"].get<std::size_t>(), 2u << 20);
    EXPECT_EQ(answer["out_of_memory"], nullptr);
    EXPECT_EQ(answer["smallest_capacity"], bound);
    answer_of({"replay", source, "--policy", "lower-bound", "--capacity", "1x"});  // and exits with 0
    EXPECT_THAT(lab({"replay", source, "--policy", "lower-bound"}).out, HasSubstr("utilisation 100.0 %"));
  }
}

TEST_F(Lab, ReplayEndsWithCode3WhenMemoryRunsOut) {
  const Answer answer = lab({"replay", "zoo:checkerboard", "--policy", "pytorch", "--capacity", "0.5x"});
  EXPECT_EQ(answer.code, 3);
  EXPECT_THAT(answer.out, HasSubstr("out of memory at"));
  EXPECT_NE(answer_of({"replay", "zoo:checkerboard", "--policy", "pytorch", "--capacity", "0.5x"}, 3)["out_of_memory"],
            nullptr);
}

TEST_F(Lab, ComparesIdenticallyOnAnyNumberOfThreads) {
  std::vector<std::string> arguments{"compare",     recording(), "zoo:example-training", "--policy", "pytorch",
                                     "lower-bound", "planned"};
  json one = answer_of(arguments), three;
  arguments.insert(arguments.end(), {"--threads", "3"});
  three = answer_of(arguments);
  const auto without_times = [](json& answer) {
    answer.erase("seconds");
    for (json& policy : answer["policies"]) policy.erase("ns_per_operation");
    for (json& workload : answer["workloads"])
      for (json& result : workload["results"]) result.erase("seconds");
  };
  without_times(one);
  without_times(three);
  EXPECT_EQ(one, three);
  ASSERT_EQ(one["workloads"].size(), 2u);
  EXPECT_EQ(one["workloads"][0]["name"], "small");
  EXPECT_EQ(one["workloads"][0]["results"][1]["smallest_over_bound"], 1.0);
  ASSERT_EQ(one["goals"].size(), 1u) << "poolgrad did not take part, planned did";
}

TEST_F(Lab, CompareEndsWithAveragesAndGoals) {
  const Answer answer = lab({"compare", "zoo:growing-cache", "--policy", "poolgrad", "pytorch", "lower-bound"});
  EXPECT_EQ(answer.code, 0) << answer.errors;
  EXPECT_THAT(answer.out, AllOf(HasSubstr("first OOM at 1.05x"), HasSubstr("smallest capacity / lower bound"),
                                HasSubstr("best other online policy: pytorch"), HasSubstr("utilisation, worst")));
  EXPECT_THAT(answer.out, AllOf(HasSubstr("utilisation at 2x"), HasSubstr("of pytorch  ")));
  EXPECT_TRUE(answer.out.find(" met\n") != std::string::npos || answer.out.find("MISSED") != std::string::npos);
}

TEST_F(Lab, GivesNoScoreToAPolicyThatServesNoWorkload) {
  const std::string limited = "rmm-arena:arena_size=2MiB", source = "zoo:checkerboard";
  const json answer = answer_of({"compare", source, "--policy", "pytorch", limited});
  const json& result = answer["workloads"][0]["results"][1];
  EXPECT_EQ(result["served"], false);
  EXPECT_EQ(result["utilisation"], nullptr);
  EXPECT_FALSE(result.contains("smallest_capacity"));
  EXPECT_EQ(answer["policies"][1]["served"], 0);
  EXPECT_EQ(answer["policies"][1]["utilisation"], nullptr);
  const Answer people = lab({"compare", source, "--policy", "pytorch", limited});
  EXPECT_THAT(people.out,
              AllOf(HasSubstr("best other online policy: pytorch by"), HasSubstr(limited + " (of 0 that it serves)")));
  const std::vector<std::string> alone{"replay", source, "--policy", limited, "--find-min-capacity"};
  EXPECT_EQ(answer_of(alone, 3)["smallest_capacity"], nullptr);
  EXPECT_THAT(lab(alone).out, HasSubstr("smallest  capacity: none suffices"));
}

TEST_F(Lab, ComparesDeviceTimeAtSeveralCapacities) {
  const std::vector<std::string> arguments{"compare",  "zoo:optimizer-start", "--policy",
                                           "poolgrad", "pytorch-expandable",  "lower-bound",
                                           "--curve",  "0.5x,1.05x",          "--no-min-capacity"};
  const json answer = answer_of(arguments);
  const json& results = answer["workloads"][0]["results"];
  // Half of the peak of live bytes is too little; 1.05 times the peak is enough for the pool.
  EXPECT_EQ(results[0]["curve"][0]["out_of_memory"], true);
  EXPECT_EQ(results[0]["curve"][1]["out_of_memory"], false);
  EXPECT_GE(results[0]["curve"][1]["device_ns"], results[0]["modelled_ns"]) << "tightness has a price";
  EXPECT_EQ(results[2]["curve"][1]["device_ns"], 0);
  // A handle of 20 MiB: created, mapped and made accessible.
  const double handles = results[1]["device_allocations"];
  EXPECT_NEAR(results[1]["modelled_ns"].get<double>() / handles, 29000 + 1450 + 35990, 100);
  EXPECT_EQ(answer["policies"][1]["device_ns"], results[1]["modelled_ns"]);
  EXPECT_EQ(answer["goals"][2]["name"], "device time");
  EXPECT_EQ(answer["goals"][2]["met"], true);
  EXPECT_THAT(lab(arguments).out, AllOf(HasSubstr("device time at"), HasSubstr("0.5x"), HasSubstr("no limit")));
}

TEST_F(Lab, ReportsOnARecordingAndAZooWorkload) {
  const std::string page = folder_.file("page.html");
  EXPECT_EQ(lab({"report", recording(), "-o", page, "--no-policies", "--title", "mine"}).code, 0);
  EXPECT_THAT(read_bytes(page), AllOf(StartsWith("<!DOCTYPE html>"), HasSubstr("\"mine\""), EndsWith("</html>\n")));
  const json answer = answer_of({"report", "zoo:checkerboard", "-o", page, "--capacity", "1.5x", "--no-policies"});
  EXPECT_EQ(answer["bytes"], std::filesystem::file_size(page));
  EXPECT_THAT(read_bytes(page), HasSubstr("placed by poolgrad"));
}

TEST_F(Lab, ReportsWithTheTableOfPolicies) {
  const std::string page = folder_.file("page.html");
  EXPECT_EQ(lab({"report", recording(), "-o", page, "--quiet"}).code, 0);
  const std::string text = read_bytes(page);
  for (const PolicyEntry& policy : policies()) EXPECT_THAT(text, HasSubstr('>' + std::string(policy.name) + '<'));
}

TEST_F(Lab, ExportsEveryFormatAndReadsThemBack) {
  const std::size_t events = load_trace(recording()).events.size();
  for (const char* format : {"pytorch", "pytorch-json", "rmm-csv", "pgt", "chrome"}) {
    const std::string file = folder_.file(format);
    const json answer = answer_of({"export", recording(), "--format", format, "-o", file});
    EXPECT_EQ(answer["bytes"], std::filesystem::file_size(file)) << format;
    if (std::string(format) == "chrome") {
      EXPECT_TRUE(json::parse(read_bytes(file)).contains("traceEvents"));
      continue;
    }
    EXPECT_GT(answer_of({"replay", file, "--policy", "lower-bound"})["operations"], 50) << format;
  }
  EXPECT_EQ(load_trace(folder_.file("pgt")).events.size(), events);
}

TEST_F(Lab, ExportsPartsOfATrace) {
  const std::string file = folder_.file("part.pgt");
  EXPECT_EQ(lab({"export", recording(), "--format", "pgt", "-o", file, "--from", "10", "--to", "60"}).code, 0);
  EXPECT_EQ(load_trace(file).events.size(), 50u);
  EXPECT_EQ(lab({"export", recording(), "--format", "pgt", "-o", file, "--min-size", "64KiB"}).code, 0);
  EXPECT_LT(load_trace(file).events.size(), load_trace(recording()).events.size());
}

TEST_F(Lab, DemoOomShowsEveryReclaimStage) {
  const json answer = answer_of({"demo-oom"});
  std::set<std::string> stages;
  for (const json& act : answer["acts"]) {
    EXPECT_LE(act["reserved"], answer["budget"]) << act["title"];
    for (const json& stage : act["stages"]) stages.insert(stage["stage"].get<std::string>());
  }
  for (const char* stage : {"commit", "drain magazines", "take from other streams", "stitch", "derived caches",
                            "offload", "rematerialise", "callback"})
    EXPECT_TRUE(stages.contains(stage)) << stage;
  EXPECT_THAT(answer["report"].get<std::string>(), HasSubstr("out of memory"));
  EXPECT_EQ(answer["proof"]["live"], 0);
  EXPECT_EQ(answer["proof"]["largest_block"], answer["budget"]);
  EXPECT_THAT(lab({"demo-oom", "--budget", "64MiB"}).out,
              AllOf(HasSubstr("1. An empty pool"), HasSubstr("End: 0 B live")));
}

TEST_F(Lab, RefusesBadInputInOneSentence) {
  const std::string nothing = folder_.file("nothing.pgt"), output = folder_.file("out");
  EXPECT_THAT(lab({"replay", nothing}).sentence(), HasSubstr(nothing));
  EXPECT_THAT(lab({"replay", "zoo:unicorn"}).sentence(), AllOf(HasSubstr("unicorn"), HasSubstr("checkerboard")));
  EXPECT_THAT(lab({"replay", recording(), "--policy", "magic"}).sentence(),
              AllOf(HasSubstr("magic"), HasSubstr("pytorch")));
  EXPECT_THAT(lab({"compare", recording(), "--policy", "magic"}).sentence(), HasSubstr("lower-bound"));
  EXPECT_THAT(lab({"replay", recording(), "--capacity", "lots"}).sentence(), HasSubstr("lots"));
  EXPECT_THAT(lab({"replay", recording(), "--capacity", "-2x"}).sentence(), HasSubstr("-2x"));
  EXPECT_THAT(lab({"replay", recording(), "--latency", "warp"}).sentence(), HasSubstr("warp"));
  EXPECT_THAT(lab({"record", "--steps", "0", "-o", output}).sentence(), HasSubstr("--steps"));
  EXPECT_THAT(lab({"record", "--device", "tpu", "-o", output}).sentence(), HasSubstr("tpu"));
  EXPECT_THAT(lab({"demo-oom", "--budget", "1MiB"}).sentence(), HasSubstr("--budget"));
  EXPECT_THAT(lab({"export", recording(), "-o", output, "--min-size", "tiny"}).sentence(), HasSubstr("tiny"));
  EXPECT_THAT(folder_.names(), IsEmpty());
}

TEST_F(Lab, RefusesUnwritableOutput) {
  const std::string nowhere = folder_.file("no/such/folder/file");
  EXPECT_THAT(lab({"report", recording(), "-o", nowhere, "--no-policies"}).sentence(), HasSubstr(nowhere));
  EXPECT_THAT(lab({"export", recording(), "-o", nowhere}).sentence(), HasSubstr(nowhere));
  EXPECT_THAT(lab({"record", "--size", "small", "--steps", "1", "-o", nowhere}).sentence(),
              HasSubstr("[record] cannot write " + nowhere))
      << "before anything is recorded";
}

TEST_F(Lab, RefusesToOverwriteItsInputOrMixOutputs) {
  const std::string trace = folder_.file("trace.pgt"), alias = folder_.file("alias"), whole = read_bytes(recording());
  write_bytes(trace, whole);
  std::filesystem::create_hard_link(trace, alias);
  for (const std::string command : {"export", "report"}) {
    for (const std::string& output : {trace, folder_.file("./trace.pgt"), alias})
      EXPECT_EQ(lab({command, trace, "-o", output}).sentence(),
                "[" + command + "] -o " + output + " would replace its input\n");
    EXPECT_EQ(lab({command, trace, "-o", "-"}).sentence(), "[" + command + "] -o needs a file, but is -\n");
  }
  EXPECT_EQ(lab({"record", "-o", "-"}).sentence(), "[record] -o needs a file, but is -\n");
  EXPECT_EQ(read_bytes(trace), whole);
}

TEST_F(Lab, RefusesEmptyTracesAndMissingGoals) {
  const std::string empty = folder_.file("empty.csv"), page = folder_.file("page");
  write_bytes(empty, "Thread,Time,Action,Pointer,Size,Stream\n");
  for (const char* command : {"replay", "compare"})
    EXPECT_EQ(lab({command, empty}).sentence(),
              "[read] " + empty + ": no allocation was recorded, so there is nothing to replay\n");
  EXPECT_EQ(lab({"report", empty, "-o", page}).code, 0);
  EXPECT_THAT(lab({"report", empty, "-o", page}).out, HasSubstr(", 0 events\n"));
  const std::vector<std::string> quick{"compare", recording(), "--no-curve", "--no-min-capacity", "--policy", "cub"};
  std::vector<std::string> checked = quick;
  checked.emplace_back("--check");
  EXPECT_EQ(lab(checked).sentence(),
            "[compare] --check needs --policy poolgrad or planned: no other policy has a goal\n");
  EXPECT_THAT(lab(quick).out, HasSubstr("\n  1 workload of "));
  std::vector<std::string> own = quick;
  own.back() = "poolgrad";
  EXPECT_THAT(lab(own).out, AllOf(HasSubstr(" operations, 1 policy, "), Not(HasSubstr("utilisation, worst"))))
      << "a file has no goal";
  own.emplace_back("--check");
  EXPECT_EQ(lab(own).sentence(), "[compare] --check needs a workload of the zoo: no other workload has a goal\n");
  own.pop_back();
  own.insert(own.begin() + 1, "zoo:growing-cache");
  const std::string both = lab(own).out;
  EXPECT_THAT(both, HasSubstr("utilisation, worst"));
  EXPECT_THAT(both, HasSubstr(" at growing-cache"));
  EXPECT_THAT(both, HasSubstr("1 file\n")) << "a column for files";
  const std::string row = both.substr(both.find("1 file\n") + 7);
  EXPECT_THAT(row.substr(0, row.find('\n')), ::testing::EndsWith(" -")) << "no capacity without the search";
}

TEST_F(Lab, RefusesASelectionOfAWorkloadOfTheZoo) {
  const std::string name = "zoo:growing-cache", output = folder_.file("output");
  const std::vector<std::vector<std::string>> commands = {
      {"replay", name}, {"compare", name}, {"report", name, "-o", output}, {"export", name, "-o", output}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--device", "0"});
    EXPECT_EQ(lab(command).sentence(), "[--device] a workload of the zoo has one device: " + name + "\n");
  }
  EXPECT_EQ(lab({"replay", name, "--with-failed"}).sentence(),
            "[--with-failed] a workload of the zoo has no failed requests: " + name + "\n");
  EXPECT_THAT(lab({"compare", "zoo", "--device", "0"}).sentence(), HasSubstr("[--device] a workload of the zoo"));
  EXPECT_EQ(
      lab({"compare", name, recording(), "--device", "0", "--no-curve", "--no-min-capacity", "--policy", "cub"}).code,
      0)
      << "the file has devices";
}

TEST_F(Lab, ReplaysEveryDeviceOfASnapshotOrOne) {
  const std::string file = folder_.file("two.json"), page = folder_.file("page");
  const auto segment = [](int device) {
    return R"({"device": )" + std::to_string(device) +
           R"(, "address": 4096, "total_size": 4096, "stream": 0, "blocks": [)"
           R"({"size": 4096, "requested_size": 4000, "state": "active_allocated"}]})";
  };
  write_bytes(file, R"({"segments": [)" + segment(0) + ", " + segment(2) + R"(], "device_traces": [[], [], []]})");
  EXPECT_THAT(lab({"replay", file}).out, AllOf(HasSubstr("two cuda:0: "), HasSubstr("two cuda:2: ")));
  EXPECT_THAT(lab({"replay", file, "--device", "2"}).out,
              AllOf(Not(HasSubstr("cuda:0")), HasSubstr("workload  two: ")));
  EXPECT_EQ(lab({"replay", file, "--device", "1"}).sentence(), "[lab] --device 1: " + file + " holds cuda:0, cuda:2\n");
  for (const std::vector<std::string>& extra : {std::vector<std::string>{}, {"--place"}}) {
    std::vector<std::string> command{"report", file, "-o", page, "--no-policies"};
    command.insert(command.end(), extra.begin(), extra.end());
    EXPECT_EQ(lab(command).sentence(), "[lab] " + file + " holds 2 devices: choose one by --device\n");
    command.insert(command.end(), {"--device", "0"});
    EXPECT_EQ(lab(command).code, 0);
  }
}

TEST_F(Lab, ReplaysAFailedRequestIfAsked) {
  const std::string file = folder_.file("failed.csv");
  write_bytes(file,
              "Thread,Time,Action,Pointer,Size,Stream\n"
              "1,00:00:00.0,allocate,0x1000,1000,0\n"
              "1,00:00:00.1,allocate failure,(nil),1073741824,0\n");
  EXPECT_EQ(lab({"replay", file, "--capacity", "1GiB"}).code, 0);
  EXPECT_EQ(lab({"replay", file, "--capacity", "1GiB", "--with-failed"}).code, 3);
  EXPECT_EQ(lab({"replay", file, "--capacity", "2GiB", "--with-failed"}).code, 0);
}

TEST_F(Lab, RefusesTruncatedAndForeignFiles) {
  const std::string whole = read_bytes(recording()), file = folder_.file("broken.pgt");
  for (const std::size_t length : {std::size_t{0}, std::size_t{5}, whole.size() / 2, whole.size() - 1}) {
    write_bytes(file, whole.substr(0, length));
    for (const char* command : {"replay", "compare"})
      EXPECT_THAT(lab({command, file}).sentence(), HasSubstr("broken.pgt")) << length;
  }
  write_bytes(file, "just some text\n");
  EXPECT_THAT(lab({"report", file, "-o", folder_.file("page")}).sentence(), HasSubstr("broken.pgt"));
}

}  // namespace
}  // namespace poolgrad::examples
