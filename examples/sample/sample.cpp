#include "examples/sample/sample.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <istream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string_view>

#include "allocator/base/atomic_file.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "examples/support/train.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

namespace {

constexpr std::int64_t small_model = 4'000'000;  // parameters

std::string rest_of(std::istream& in) { return {std::istreambuf_iterator<char>(in), {}}; }

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const int error = errno;
  const bool is_folder = std::filesystem::is_directory(path);
  if (!file.is_open() || is_folder)
    throw FileError("[--prompt-file] " + printable_path(path) + ": " +
                    (is_folder ? "is a folder" : opening_failure(error)));
  return rest_of(file);
}

/// A byte as a terminal can show it: line breaks, tabs, printable ASCII and UTF-8.
char shown(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 ? (byte == 0x7f ? '?' : c) : (c == '\n' || c == '\t' ? c : '?');
}

/// The cost of a text.
struct Written {
  std::string prompt = {}, text = {};
  std::int64_t tokens = 0;
  std::size_t first = 0;            // bytes of the first token
  double reading = 0, writing = 0;  // seconds: the prompt and the first token; the other tokens

  double bytes_per_second() const { return writing > 0 ? static_cast<double>(text.size() - first) / writing : 0; }
  double tokens_per_second() const { return writing > 0 ? static_cast<double>(tokens - 1) / writing : 0; }
};

/// A model and its generated texts.
class Session {
 public:
  Session(const SampleOptions& options, const SampleStreams& streams)
      : options_(options),
        streams_(streams),
        device_(parse_device(options.device, "sample")),
        pool_(device_, ""),
        trained_(of_option("sample", [&] { return load_trained_model(options.checkpoint, device_); })),
        writer_(*trained_.model, options.sampler, device_, trained_.tokenizer) {
    trained_.model->cast_matrices();
  }

  void one_text(const std::string& prompt) {
    if (!options_.json) show(prompt);
    const Written written = write(prompt);
    if (options_.json) {
      streams_.out << json_text(answer(written)) << std::flush;
      return;
    }
    streams_.out << std::endl;
    streams_.notes << summary(written) << std::endl;
  }

  /// Reads lines until the input ends.
  void lines() {
    streams_.notes << description() << "\nType text to continue it; an empty line continues the last output. "
                   << "Ctrl-C ends a text, Ctrl-D the program." << std::endl;
    bool begun = false;
    for (std::string line;;) {
      const InterruptGuard patient;  // ignores a Ctrl-C that comes just after a text
      streams_.out << "> " << std::flush;
      if (!std::getline(streams_.in, line)) break;
      if (line.empty() && !begun) continue;
      if (!line.empty()) writer_.start_anew();
      begun = true;
      InterruptGuard::forget();
      const Written written = write(line);
      streams_.out << std::endl;
      streams_.notes << summary(written) << std::endl;
    }
    streams_.out << std::endl;
  }

 private:
  std::string description() const {
    const TrainOptions& o = trained_.options;
    return fmt::format("{} parameters, {}, width {}, context {}, {}{}",
                       nn::format_count(static_cast<double>(trained_.model->parameter_count())),
                       plural(o.layers.count(), "layer"), o.width, o.context, o.describe_attention(),
                       o.tokenizer == "bytes" ? "" : ", tokens of " + o.tokenizer);
  }

  void show(const std::string& text) {
    std::string visible = text;
    if (streams_.out_terminal) std::ranges::transform(visible, visible.begin(), shown);
    streams_.out << visible << std::flush;
  }

  /// For a small model, a token after the prompt is too little work for several threads: they would spend more time on
  /// synchronization than on compute. The result is the same bit for bit.
  std::string_view next_token(bool first) {
    std::optional<kernels::OnThisThread> alone;
    if (!first && trained_.model->parameter_count() < small_model) alone.emplace();
    return writer_.write();
  }

  Written write(const std::string& prompt) {
    const InterruptGuard interrupts;
    Written written{.prompt = prompt};
    writer_.read(prompt);
    Stopwatch watch;
    while (std::ssize(written.text) < options_.bytes && !InterruptGuard::interrupted()) {
      const bool first = written.text.empty();
      std::string token(next_token(first));
      token.resize(std::min(token.size(), static_cast<std::size_t>(options_.bytes) - written.text.size()));
      written.text += token;
      ++written.tokens;
      if (first) {
        written.first = token.size();
        written.reading = watch.seconds();
        watch = Stopwatch();
      }
      if (!options_.json) show(token);
    }
    if (!written.text.empty()) written.writing = watch.seconds();
    return written;
  }

  std::string summary(const Written& w) const {
    const Statistics statistics = (*pool_).statistics();
    const std::string tokens =
        trained_.options.tokenizer == "bytes"
            ? ""
            : fmt::format("{} tokens, {} a second; ", w.tokens, nn::format_count(w.tokens_per_second()));
    return fmt::format(
        "{}{} bytes, {} a second, after {} read in {}; {} of keys and values for {} positions{}; pool {} live, {} "
        "reserved",
        tokens, w.text.size(), nn::format_count(w.bytes_per_second()), w.prompt.size(), format_time(1e9 * w.reading),
        format_bytes(writer_.cache_bytes()), writer_.positions(),
        writer_.restarts() ? ", " + plural(writer_.restarts(), "restart") : "",
        format_bytes(statistics.allocated_bytes.current), format_bytes(statistics.reserved_bytes.current));
  }

  Json answer(const Written& w) const {
    const Statistics statistics = (*pool_).statistics();
    const nn::SamplerOptions& s = options_.sampler;
    return {{"checkpoint", options_.checkpoint},
            {"prompt", w.prompt},
            {"text", w.text},
            {"bytes", w.text.size()},
            {"bytes_per_second", w.bytes_per_second()},
            {"tokens", w.tokens},
            {"tokens_per_second", w.tokens_per_second()},
            {"prompt_seconds", w.reading},
            {"seconds", w.reading + w.writing},
            {"cache_bytes", writer_.cache_bytes()},
            {"cache_positions", writer_.positions()},
            {"restarts", writer_.restarts()},
            {"peak_live_bytes", statistics.allocated_bytes.peak},
            {"peak_reserved_bytes", statistics.reserved_bytes.peak},
            {"temperature", s.temperature},
            {"top_k", s.top_k},
            {"top_p", s.top_p},
            {"repetition_penalty", s.repetition_penalty},
            {"penalty_window", s.penalty_window},
            {"seed", s.seed},
            {"device", to_string(device_)}};
  }

  const SampleOptions& options_;
  const SampleStreams& streams_;
  Device device_;
  PoolGuard pool_;
  TrainedModel trained_;
  nn::TextWriter writer_;
};

/// Checks the sampler's options, under their command-line names.
void check_sampler(const nn::SamplerOptions& options) {
  try {
    static_cast<void>(nn::Sampler(options));
  } catch (const ValueError& error) {
    const std::string text = error.what();
    const std::size_t begin = text.find("] ") + 2, end = text.find(' ', begin);
    std::string option = text.substr(begin, end - begin);
    std::ranges::replace(option, '_', '-');
    throw ValueError(fmt::format("[--{}] it{}", option, text.substr(end)));
  }
}

}  // namespace

int parse_sample_options(int argc, const char* const* argv, SampleOptions& o) {
  CLI::App app(
      "Generates text with a model saved by train --save, or one in Hugging Face's format. Without a prompt, continues "
      "standard input; on a terminal, "
      "line by line.",
      "./run sample");
  app.option_defaults()->always_capture_default();
  app.add_option("checkpoint", o.checkpoint, "Checkpoint of train --save, or folder in Hugging Face's format")
      ->required();
  auto* prompt = app.add_option("--prompt", o.prompt, "Text to continue; it is also printed");
  app.add_option("--prompt-file", o.prompt_file, "File with the text to continue")->excludes(prompt);
  app.add_option("--bytes", o.bytes, "Bytes to write");
  app.add_option("--temperature", o.sampler.temperature, "Divides the logits; 0: always the most probable token");
  app.add_option("--top-k", o.sampler.top_k, "Draw only from this many most probable tokens (0: all)");
  app.add_option("--top-p", o.sampler.top_p, "Draw only from the fewest tokens with this total probability");
  app.add_option("--repetition-penalty", o.sampler.repetition_penalty,
                 "Divides positive logits of recent tokens, multiplies negative ones");
  app.add_option("--penalty-window", o.sampler.penalty_window, "Number of recent tokens for the penalty");
  app.add_option("--seed", o.sampler.seed, "Seed of the draws");
  app.add_option("--device", o.device,
                 "cpu, cuda:N, auto (a GPU if there is one), or sim:SIZE, to count memory: its text is meaningless");
  app.add_flag("--json", o.json, "Print only JSON");
  return parse_command_line(app, argc, argv);
}

void sample(const SampleOptions& options, const SampleStreams& streams) {
  if (options.bytes < 0)
    throw ValueError(fmt::format("[sample] --bytes must not be negative, but is {}", options.bytes));
  check_sampler(options.sampler);
  const bool by_lines = !options.prompt && options.prompt_file.empty() && streams.in_terminal;
  if (by_lines && options.json)
    throw ValueError("[sample] --json needs a text to continue: --prompt, --prompt-file or standard input");
  Session session(options, streams);  // reports errors before waiting for the prompt
  std::string prompt;
  if (options.prompt)
    prompt = *options.prompt;
  else if (!options.prompt_file.empty())
    prompt = contents_of(options.prompt_file);
  else if (!by_lines)
    prompt = rest_of(streams.in);
  if (!by_lines && prompt.empty()) throw ValueError("[sample] the prompt is empty: there is nothing to continue");
  if (by_lines)
    session.lines();
  else
    session.one_text(prompt);
}

}  // namespace poolgrad::examples
