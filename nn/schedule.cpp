#include "nn/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"

namespace poolgrad::nn {

namespace {

constexpr std::pair<Schedule::Kind, const char*> schedule_names[] = {{Schedule::Kind::cosine, "cosine"},
                                                                     {Schedule::Kind::linear, "linear"},
                                                                     {Schedule::Kind::constant, "constant"},
                                                                     {Schedule::Kind::wsd, "wsd"}};

}  // namespace

double Schedule::rate(std::int64_t step) const {
  step = std::min(step, std::max<std::int64_t>(steps, 1));
  const std::int64_t top = std::max<std::int64_t>(warmup, 1);  // the step at the peak
  if (step <= top) return peak * static_cast<double>(step) / static_cast<double>(top);
  if (kind == Kind::constant) return peak;
  const std::int64_t last_at_peak =
      kind == Kind::wsd ? std::max(top, steps - std::lround(decay * static_cast<double>(steps))) : top;
  const double span = static_cast<double>(std::max<std::int64_t>(steps - last_at_peak, 1));
  const double progress = std::max(0.0, static_cast<double>(step - last_at_peak) / span);
  if (kind != Kind::cosine) return peak * (floor + (1.0 - floor) * (1.0 - progress));
  return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

Schedule::Kind Schedule::parse(const std::string& text) {
  for (const auto& [kind, name] : schedule_names)
    if (text == name) return kind;
  throw ValueError("[schedule] it must be cosine, linear, constant or wsd, but is " + printable(text));
}

std::string to_string(Schedule::Kind kind) {
  for (const auto& [known, name] : schedule_names)
    if (kind == known) return name;
  return "invalid";
}

std::int64_t ContextWarmup::context(std::int64_t step, std::int64_t whole) const {
  const auto stage = std::ranges::lower_bound(stages, step, {}, &Stage::last_step);
  return stage == stages.end() ? whole : stage->context;
}

void ContextWarmup::check(std::int64_t whole) const {
  Stage before;
  for (const Stage& stage : stages) {
    if (stage.context <= before.context || stage.context >= whole || stage.last_step <= before.last_step)
      throw ValueError(
          fmt::format("[context warm-up] contexts must rise to less than {}, and steps must rise, but {} up to step {} "
                      "follows {} up to step {}",
                      whole, stage.context, stage.last_step, before.context, before.last_step));
    before = stage;
  }
}

ContextWarmup ContextWarmup::parse(const std::string& text) {
  ContextWarmup warmup;
  if (text == "none") return warmup;
  for (const std::string& part : split(text, ',')) {
    const std::vector<std::string> numbers = split(part, ':');
    const auto context = number_in<std::int64_t>(numbers.front()), step = number_in<std::int64_t>(numbers.back());
    if (numbers.size() != 2 || !context || !step)
      throw ValueError("[context warm-up] it must be none or CONTEXT:STEP, such as 128:500,256:1000, but is " +
                       printable(text));
    warmup.stages.push_back({*context, *step});
  }
  return warmup;
}

}  // namespace poolgrad::nn
