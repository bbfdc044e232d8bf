// The pages' command lines: the command exists, and its program accepts every option and value. Those of the laboratory
// and of plans are run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "allocator/error.h"
#include "examples/compare/compare.h"
#include "examples/headline/headline.h"
#include "examples/lab/lab.h"
#include "examples/plan/plan.h"
#include "examples/recall/recall.h"
#include "examples/sample/sample.h"
#include "examples/support/train.h"
#include "tests/docs/markdown.h"

namespace poolgrad::docs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using Words = std::vector<std::string>;

/// Splits a line as a shell does, up to a # or two spaces, after which pages describe the command.
Words words_of(const std::string& text) {
  Words words;
  std::string word;
  char quote = 0;
  bool open = false;  // a word has begun
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ' ';
    if (quote) {
      c == quote ? void(quote = 0) : word.push_back(c);
    } else if (c == '\'' || c == '"') {
      quote = c, open = true;
    } else if (c != ' ') {
      if (c == '#' && !open) break;
      word += c, open = true;
    } else if (open) {
      words.push_back(word);
      word.clear(), open = false;
      if (text.substr(i, 2) == "  ") break;
    }
  }
  return words;
}

/// Returns one line for each choice of a or b in words of the form "a|b".
std::vector<Words> alternatives(const Words& words) {
  std::vector<Words> all(1);
  for (const std::string& word : words) {
    std::vector<Words> longer;
    std::istringstream in(word);
    for (std::string one; std::getline(in, one, '|');)
      for (Words before : all) {
        before.push_back(one);
        longer.push_back(before);
      }
    if (!word.empty()) all = longer;
  }
  return all;
}

struct CommandLine {
  std::string place;  // "README.md:13: "
  Words words;        // the command first: "train", "--steps", "3"
};

const std::set<std::string> programs = {"train", "sample", "lab", "compare", "plan", "recall", "headline"};

/// Finds `./run X ...` in spans and blocks, and `X --...` of programs.
std::vector<CommandLine> command_lines(const Page& page) {
  std::vector<CommandLine> found;
  const auto add = [&](int line, const std::string& text) {
    if (text.find("...") != std::string::npos) return;
    const std::size_t run = text.find("./run ");
    Words words = words_of(run == std::string::npos ? text : text.substr(run + 6));
    const bool bare = words.size() > 1 && programs.contains(words[0]) && words[1].starts_with("--");
    if (words.empty() || (run == std::string::npos && !bare)) return;
    for (const Words& each : alternatives(words)) found.push_back({at(page, line), each});
  };
  for (const auto& [line, text] : code_spans(page)) add(line, text);
  for (const Piece& piece : pieces_of(page)) {
    if (piece.kind != PieceKind::indented && (piece.kind != PieceKind::fence || !piece.info.empty())) continue;
    int line = piece.line;
    for (const std::string& text : lines_of(piece.text)) {
      if (const std::size_t run = text.find("./run "); run != std::string::npos) add(line, text.substr(run));
      ++line;
    }
  }
  return found;
}

std::vector<CommandLine> all_command_lines() {
  std::vector<CommandLine> all;
  for (const Page& page : read_pages(POOLGRAD_SOURCE_DIR))
    for (const CommandLine& command : command_lines(page)) all.push_back(command);
  return all;
}

std::string script() {
  std::ifstream file(fs::path(POOLGRAD_SOURCE_DIR) / "run");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Returns whether the word is N, SIZE, FILE or another placeholder for a value.
bool is_placeholder(const std::string& word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= 'A' && c <= 'Z'; });
}

/// Returns the words as program arguments, with a valid value in place of each placeholder.
std::vector<const char*> arguments(Words& words) {
  std::vector<const char*> argv;
  for (std::string& word : words) {
    if (is_placeholder(word)) word = word == "SIZE" ? "64MiB" : "1";
    argv.push_back(word.c_str());
  }
  return argv;
}

/// While alive, collects the standard streams in strings.
class Captured {
 public:
  Captured() : out_(std::cout.rdbuf(text_.rdbuf())), errors_(std::cerr.rdbuf(text_.rdbuf())) {}
  ~Captured() { std::cout.rdbuf(out_), std::cerr.rdbuf(errors_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf *out_, *errors_;
};

int parse_lab(int argc, const char* const* argv) {
  CLI::App app("", "lab");
  app.require_subcommand(1);
  std::vector<examples::Command> commands;  // owns the parsed values
  for (const auto add : {examples::add_record, examples::add_replay, examples::add_compare, examples::add_report,
                         examples::add_demo_oom, examples::add_export, examples::add_list}) {
    commands.push_back(add(app));
    commands.back().app->add_flag("--json");
    commands.back().app->add_flag("--quiet");
  }
  return examples::parse_command_line(app, argc, argv);
}

/// Reads a command line as its program does; returns -1, or the exit code of --help, if it is valid. Throws the
/// exceptions of the options.
int parse(Words words) {
  const bool exact = std::ranges::none_of(words, is_placeholder);
  const std::vector<const char*> argv = arguments(words);
  const int argc = static_cast<int>(argv.size());
  const std::string& program = words[0];
  if (program == "lab") return parse_lab(argc, argv.data());
  int code = 0;
  const auto read = [&](auto options, auto parser, auto check) {
    code = parser(argc, argv.data(), options);
    if (code == -1 && exact) check(options);
  };
  using namespace examples;
  const auto nothing = [](const auto&) {};
  if (program == "train")
    read(TrainOptions(), parse_train_options, [](const TrainOptions& o) {
      o.check();
      if (!o.budget.empty()) parse_bytes(o.budget);
    });
  if (program == "plan")
    read(PlanOptions(), parse_plan_options, [](const PlanOptions& o) {
      auto run = o.train;
      if (run.checkpoint == "budget") run.budget = o.memory;
      run.check();
    });
  if (program == "compare")
    read(CompareOptions(), parse_compare_options, [](const CompareOptions& o) { o.contenders(); });
  if (program == "recall") read(RecallOptions(), parse_recall_options, [](const RecallOptions& o) { o.contenders(); });
  if (program == "sample") read(SampleOptions(), parse_sample_options, nothing);
  if (program == "headline") read(HeadlineOptions(), parse_headline_options, nothing);
  return code;
}

/// Returns the text that --help of every program prints.
std::string help() {
  Captured captured;
  for (const std::string& program : programs) parse({program, "--help"});
  for (const char* command : {"record", "replay", "compare", "report", "demo-oom", "export", "list"})
    parse({"lab", command, "--help"});
  return captured.text();
}

TEST(CommandLines, EndBeforeTheirDescription) {
  const Page page{"a.md",
                  "`./run train --text 'a b' \"c\"`\n\n    ./run lab list --json    all\n    $ ./run test   # not -x\n"
                  "\nThe option `--save`, `plan --memory 8GiB`, `lab record`, `./run plan --size a|b`.\n"};
  std::vector<Words> found;
  for (const CommandLine& command : command_lines(page)) found.push_back(command.words);
  EXPECT_THAT(found, testing::UnorderedElementsAre(Words{"train", "--text", "a b", "c"}, Words{"lab", "list", "--json"},
                                                   Words{"test"}, Words{"plan", "--memory", "8GiB"},
                                                   Words{"plan", "--size", "a"}, Words{"plan", "--size", "b"}));
}

TEST(CommandLines, UnknownCommandsAndValuesAreRefused) {
  Captured captured;
  EXPECT_EQ(parse({"train", "--steps", "N"}), -1);
  EXPECT_GT(parse({"train", "--step", "3"}), 0);
  EXPECT_GT(parse({"train", "--steps", "three"}), 0);
  EXPECT_GT(parse({"lab", "recrod", "-o", "a.pgt"}), 0);
  EXPECT_THROW(parse({"train", "--attention", "sliding"}), ValueError);
}

TEST(CommandLines, NameCommandsOfRun) {
  const std::string text = script();
  std::vector<std::string> unknown;
  for (const auto& [place, words] : all_command_lines())
    if (!words[0].starts_with("-") && text.find("\n  " + words[0] + ") shift") == std::string::npos)
      unknown.push_back(place + words[0]);
  EXPECT_THAT(unknown, IsEmpty());
}

TEST(CommandLines, AreAcceptedByTheirPrograms) {
  const std::string options = help();
  std::vector<std::string> wrong;
  int read = 0;
  for (auto [place, words] : all_command_lines()) {
    if (!programs.contains(words[0]) || words.size() == 1) continue;
    if (words[0] == "lab" && words.size() == 2) words.push_back("--help");  // only a command's name
    if (words.size() == 2 && words[1].starts_with("--") && options.find(words[1]) != std::string::npos) continue;
    ++read;
    Captured captured;
    try {
      if (parse(words) <= 0) continue;
      wrong.push_back(place + testing::PrintToString(words) + " " + captured.text());
    } catch (const Error& error) {
      wrong.push_back(place + testing::PrintToString(words) + " " + error.what());
    }
  }
  EXPECT_THAT(wrong, IsEmpty());
  EXPECT_GE(read, 40);
}

TEST(CommandLines, NameKnownOptions) {
  const std::string known =
      help() + script() +
      // Options of other programs: CMake, ctest, GoogleTest, Google Benchmark, mpirun, srun, valgrind, peers,
      // pattern_gallery.
      "--install --prefix --build --preset --test-dir --gtest_filter --benchmark_filter --benchmark_min_time "
      "--benchmark_repetitions --headless --screenshot --window-size --oversubscribe --bind-to --kill-on-bad-exit "
      "--repeats --serve --output --tool --lengths --dtypes --patterns --passes ";
  std::vector<std::string> unknown;
  for (const Page& page : read_pages(POOLGRAD_SOURCE_DIR))
    for (const auto& [line, span] : code_spans(page))
      for (const std::string& word : words_of(span)) {
        const std::string option = word.substr(0, word.find_first_of("=[,|:"));
        if (!option.starts_with("--")) continue;
        if (known.find(option) == std::string::npos) unknown.push_back(at(page, line) + option);
      }
  EXPECT_THAT(unknown, IsEmpty());
}

/// Runs commands in a temporary folder.
class CommandRuns : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("poolgrad_commands_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    fs::current_path(folder_);
  }
  void TearDown() override {
    fs::current_path(home_);
    fs::remove_all(folder_);
  }
  /// Returns the command lines of a page in its order; `./run lab list`, not `lab --json`.
  static std::vector<Words> lines(const std::string& path, const std::string& program) {
    std::vector<Words> found;
    for (const auto& [place, words] : all_command_lines())
      if (place.starts_with(path) && words[0] == program) found.push_back(words);
    return found;
  }

 private:
  fs::path home_ = fs::current_path(), folder_;
};

TEST_F(CommandRuns, LaboratoryCommandsRunInPageOrder) {
  int run = 0;
  for (Words words : lines("docs/guides/laboratory.md", "lab")) {
    if (words.size() < 2 || words[1] == "compare") continue;
    for (std::string& word : words)
      if (word.starts_with("tests/data/")) word = std::string(POOLGRAD_SOURCE_DIR) + "/" + word;
    std::ostringstream out, errors;
    const std::vector<const char*> argv = arguments(words);
    EXPECT_EQ(examples::run_lab(static_cast<int>(argv.size()), argv.data(), out, errors), 0)
        << testing::PrintToString(words) << errors.str();
    ++run;
  }
  EXPECT_GE(run, 6);
  for (const char* file : {"train.pgt", "report.html", "snapshot.pickle"}) EXPECT_TRUE(fs::exists(file)) << file;
}

TEST_F(CommandRuns, PlanCommandsReportTheFit) {
  int run = 0;
  for (Words words : lines("docs/guides/memory.md", "plan")) {
    const bool trains = std::ranges::any_of(words, [](const auto& word) { return word.starts_with("--measure"); });
    if (words.size() < 2 || trains || words[1] == "--policies" || words.back() == "--policies") continue;
    examples::PlanOptions options;
    const std::vector<const char*> argv = arguments(words);
    ASSERT_EQ(examples::parse_plan_options(static_cast<int>(argv.size()), argv.data(), options), -1);
    std::ostringstream out;
    examples::run_plan(options, out);
    EXPECT_THAT(out.str(), HasSubstr("peak")) << testing::PrintToString(words);
    ++run;
  }
  EXPECT_GE(run, 3);
  EXPECT_TRUE(fs::exists("plan.html"));
}

TEST_F(CommandRuns, SimulatedTrainingCommandRuns) {
  for (Words words : lines("docs/guides/training.md", "train")) {
    if (std::ranges::count(words, "sim:8GiB") == 0) continue;
    examples::TrainOptions options;
    const std::vector<const char*> argv = arguments(words);
    ASSERT_EQ(examples::parse_train_options(static_cast<int>(argv.size()), argv.data(), options), -1);
    std::ostringstream out;
    examples::train(options, out);
    EXPECT_THAT(out.str(), HasSubstr("step 3/3"));
    return;
  }
  FAIL() << "docs/guides/training.md trains nothing on sim:8GiB";
}

/// The commands of the page at a small size, in their order: later ones start from checkpoints of earlier ones.
TEST_F(CommandRuns, LongContextCommandsRunInPageOrder) {
  std::ofstream("small.txt") << std::string(4000, 'a');
  constexpr std::int64_t smaller = 32;
  std::ostringstream out;
  int run = 0;
  for (const char* const program : {"train", "recall", "compare"})
    for (Words words : lines("docs/guides/long-context.md", program)) {
      const bool only_named = words.size() < 2 || (words.size() == 2 && words[1].starts_with("--"));
      if (only_named || std::ranges::any_of(words, is_placeholder)) continue;
      SCOPED_TRACE(testing::PrintToString(words));
      const std::vector<const char*> argv = arguments(words);
      const int argc = static_cast<int>(argv.size());
      if (words[0] == std::string("train")) {
        examples::TrainOptions options;
        ASSERT_EQ(examples::parse_train_options(argc, argv.data(), options), -1);
        options.text = {"small.txt"};
        options.context /= smaller;
        options.context_warmup = options.context_warmup == "none" ? "none" : "8:1,16:2";
        options.steps = 4, options.save_every = 0, options.sample = 0, options.stop_after = 0;
        examples::train(options, out);
      } else if (words[0] == std::string("recall")) {
        examples::RecallOptions options;
        ASSERT_EQ(examples::parse_recall_options(argc, argv.data(), options), -1);
        options.distance /= smaller, options.ask = 0;
        options.steps = 1, options.questions = 1;
        examples::run_recall(options, out);
      } else {
        examples::CompareOptions options;
        ASSERT_EQ(examples::parse_compare_options(argc, argv.data(), options), -1);
        options.train.steps = 1;
        for (std::string& task : options.tasks) task = task.substr(0, task.find(':')) + ":8:8";
        examples::check_ended(examples::run_compare(options, out));
      }
      ++run;
    }
  EXPECT_GE(run, 10);
  for (const char* file : {"base.safetensors", "long.safetensors", "killed.jsonl", "tasks.html"})
    EXPECT_TRUE(fs::exists(file)) << file;
}

/// Returns the texts between backquotes as words.
Words quoted_words(const std::string& text) {
  Words words;
  for (std::size_t open = text.find('`'); open != std::string::npos;) {
    const std::size_t close = text.find('`', open + 1);
    std::istringstream in(text.substr(open + 1, close - open - 1));
    for (std::string word; in >> word;) words.push_back(word);
    open = text.find('`', close + 1);
  }
  return words;
}

TEST_F(CommandRuns, TrainingReportHasTheDocumentedJsonFields) {
  for (const char* name : {"a", "b"}) std::ofstream(name) << std::string(2000, *name);
  examples::TrainOptions options;
  options.text = {"a=1", "b=2"};
  options.context = 32, options.layers = 1, options.width = 8, options.heads = 1, options.steps = 1, options.sample = 1;
  options.checkpoint = "selective", options.report = 1;
  options.json = "report.json", options.quiet = true;
  std::ostringstream out;
  examples::train(options, out);
  const auto report = nlohmann::json::parse(std::ifstream(options.json));
  std::set<std::string> found, said;
  for (const auto& [key, value] : report.items()) found.insert(key);
  std::ifstream page(fs::path(POOLGRAD_SOURCE_DIR) / "docs/reference/training-options.md");
  std::string line;
  while (std::getline(page, line) && line != "## JSON") {
  }
  while (std::getline(page, line)) {
    const std::size_t cell = line.find(" | ");
    if (!line.starts_with("| `") || cell == std::string::npos) continue;
    for (const std::string& key : quoted_words(line.substr(0, cell))) {
      said.insert(key);
      const auto& value = report.value(key, nlohmann::json());
      for (const std::string& inner : quoted_words(line.substr(cell)))
        EXPECT_TRUE((value.is_array() && !value.empty() ? value[0] : value).contains(inner)) << key << ": " << inner;
    }
  }
  EXPECT_EQ(said, found);
}

/// Replaces each number by #, so that texts with other numbers are equal.
std::string without_numbers(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (is_digit(i) || (text[i] == '-' && is_digit(i + 1))) {
      while (is_digit(i + 1) ||
             (i + 1 < text.size() && std::string("e.-").find(text[i + 1]) != std::string::npos && is_digit(i + 2)))
        ++i;
      out += '#';
    } else {
      out += text[i];
    }
  }
  return out;
}

TEST(Transcripts, MatchTheOutputOfTheCustomGradient) {
  std::string printed;
  FILE* const program = popen(POOLGRAD_CUSTOM_GRADIENT, "r");
  for (int c = 0; (c = std::fgetc(program)) != EOF;) printed += static_cast<char>(c);
  EXPECT_EQ(pclose(program), 0);
  printed = without_numbers(printed);
  std::string shown, excerpt;
  for (const Page& page : read_pages(POOLGRAD_SOURCE_DIR))
    for (const Piece& piece : pieces_of(page)) {
      if (piece.kind != PieceKind::fence) continue;
      if (page.path == "docs/guides/gradients.md" && piece.text.starts_with("a right backward")) shown = piece.text;
      if (page.path == "README.md" && piece.text.starts_with("a wrong backward")) excerpt = piece.text;
    }
  EXPECT_EQ(without_numbers(trimmed(shown)), trimmed(printed));
  int lines = 0;
  std::istringstream all(without_numbers(excerpt));
  for (std::string line; std::getline(all, line); ++lines)
    EXPECT_TRUE(line == "  ..." || printed.find(line + "\n") != std::string::npos) << line;
  EXPECT_GT(lines, 4);
}

}  // namespace
}  // namespace poolgrad::docs
