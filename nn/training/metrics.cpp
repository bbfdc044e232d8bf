#include "nn/training/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "nn/training/progress.h"

namespace poolgrad::nn {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t longest_line = 4096;

/// Calls f(name, value) for every field of a line.
template <class F>
void for_each_metric(const StepRecord& step, double validation_loss, std::uint64_t peak_live_bytes, const F& f) {
  for_each_field(step, f);
  f("validation_loss", validation_loss);
  f("peak_live_bytes", peak_live_bytes);
}

std::string header() {
  std::string line;
  for_each_metric({}, 0, 0, [&](const char* name, auto) { line += (line.empty() ? "" : ",") + std::string(name); });
  return line;
}

/// Returns the step of a line; none if it is no such line.
std::optional<std::int64_t> step_of(const std::string& line, bool is_json) {
  if (!is_json) return number_in<std::int64_t>(std::string_view(line).substr(0, line.find(',')));
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return std::nullopt;
  return json["step"].get<std::int64_t>();
}

/// Returns the bytes of the header and of the lines up to a step. The lines of a run have ascending steps.
std::uintmax_t bytes_up_to(std::int64_t steps_done, const std::string& path, bool is_json) {
  std::ifstream in(path, std::ios::binary);
  std::string line(longest_line, '\0');
  std::uintmax_t bytes = 0;
  for (std::int64_t number = 1, before = 0;; ++number) {
    in.getline(line.data(), static_cast<std::streamsize>(line.size()));
    const auto read = static_cast<std::size_t>(in.gcount());
    const bool is_whole = in.good(), is_too_long = in.fail() && read + 1 == line.size();
    if (!is_whole && !is_too_long) return bytes;
    const std::string text(line.data(), is_too_long ? read : read - 1);
    const bool is_header = !is_json && number == 1;
    const auto step = is_header ? std::optional<std::int64_t>(0) : step_of(text, is_json);
    if (is_too_long || !step || (is_header ? text != header() : *step <= before))
      throw FileError(
          fmt::format("[train] cannot continue {}: line {} is not a line of metrics", printable_path(path), number));
    if (*step > steps_done) return bytes;
    before = *step;
    bytes += read;
  }
}

}  // namespace

std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

void MetricsFile::check_name(const std::string& path) {
  if (!path.empty() && !path.ends_with(".jsonl") && !path.ends_with(".csv"))
    throw ValueError("[train] the metrics file must end in .jsonl or .csv: " + printable_path(path));
}

MetricsFile::MetricsFile(const std::string& path, std::int64_t steps_done)
    : path_(path), is_json_(path.ends_with(".jsonl")) {
  check_name(path);
  if (path.empty()) return;
  check_replaceable(path, "train");
  const bool continues = steps_done > 0 && std::filesystem::exists(path);
  const std::uintmax_t kept = continues ? bytes_up_to(steps_done, path, is_json_) : 0;
  out_.open(path, std::ios::binary | std::ios::app);
  std::error_code error;
  std::filesystem::resize_file(path, kept, error);
  if (!out_ || error)
    throw FileError(fmt::format("[train] cannot write {}: {}", printable_path(path),
                                error ? error.message() : std::strerror(errno)));
  if (kept == 0 && !is_json_) out_ << header() << '\n' << std::flush;
}

void MetricsFile::add(const StepRecord& step, double validation_loss, std::uint64_t peak_live_bytes) {
  if (path_.empty()) return;
  Json json;
  std::string line;
  for_each_metric(step, validation_loss, peak_live_bytes, [&](const char* name, auto value) {
    if (is_json_)
      json[name] = value;
    else
      line += fmt::format("{}{}", line.empty() ? "" : ",", value);
  });
  errno = 0;
  out_ << (is_json_ ? json_text(json, -1) : line + "\n") << std::flush;
  if (!out_ && failure_.empty())
    failure_ = fmt::format("[train] cannot write {}: {}", printable_path(path_),
                           errno != 0 ? std::strerror(errno) : "the stream failed");
}

void MetricsFile::check() const {
  if (!failure_.empty()) throw FileError(failure_);
}

}  // namespace poolgrad::nn
