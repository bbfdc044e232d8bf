#include "nn/training/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "allocator/base/printable.h"
#include "nn/training/progress.h"
#include "nn/training/trainer.h"

namespace poolgrad::nn {

namespace {

using Json = nlohmann::ordered_json;

/// Returns recomputed work divided by recorded work, in the device's prices.
double share_of_forward(const RematerialisationStatistics& s) {
  return s.recorded_nanoseconds > 0 ? s.recomputed_nanoseconds / s.recorded_nanoseconds : 0.0;
}

/// Returns text that a terminal can show, with a margin.
std::string shown(const std::string& text) {
  return "  | " + visible_text(text, [](char c) -> std::string {
           if (c == '\n') return "\n  | ";
           return c == '\t' ? "\t" : c == '\r' ? "" : "?";
         });
}

/// "  scale 32768, 3 skipped"; "" without loss scaling.
std::string describe_scale(const StepRecord& s) {
  return s.loss_scale == 1 && s.skipped_steps == 0
             ? ""
             : fmt::format("  scale {}, {} skipped", s.loss_scale, s.skipped_steps);
}

/// Returns the loss at every fourth octave and the last: "3.412 after 1 byte, 2.108 after 9 to 16, ...".
std::string describe_positions(const std::vector<PositionLoss>& positions, const Corpus& corpus) {
  std::string text;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (i % 4 != 0 && i + 1 != positions.size()) continue;
    const PositionLoss& p = positions[i];
    text += fmt::format("{}{:.3f} after {}", text.empty() ? "" : ", ", p.loss, p.first);
    if (p.last > p.first) text += fmt::format(" to {}", p.last);
    if (i == 0) text += corpus.of_bytes() ? " byte" : " token";
  }
  return text;
}

}  // namespace

std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string json_report(const TrainResult& r, const nlohmann::ordered_json& config, const Corpus& corpus) {
  Json steps = Json::array(), validations = Json::array(), positions = Json::array(), texts = Json::array(), categories;
  for (const StepRecord& record : r.steps) {
    Json step;
    for_each_field(record, [&](const char* name, auto value) { step[name] = value; });
    steps.push_back(std::move(step));
  }
  for (const auto& [step, loss] : r.validations) validations.push_back({{"step", step}, {"loss", loss}});
  for (const PositionLoss& p : r.by_position)
    positions.push_back({{"first", p.first}, {"last", p.last}, {"loss", p.loss}});
  for (std::size_t i = 0; i < r.by_text.size(); ++i)
    texts.push_back({{"text", corpus.texts[i].path}, {"loss", r.by_text[i]}});
  for (std::size_t i = 0; i < category_count; ++i)
    categories[std::string(to_string(static_cast<Category>(i)))] = r.bytes_by_category[i];
  Json recomputed;
  if (r.recomputed)
    recomputed = {{"saved_bytes", r.recomputed->saved_bytes},
                  {"dropped_bytes", r.recomputed->dropped_bytes},
                  {"operators_run_again", r.recomputed->recomputed},
                  {"share_of_forward", share_of_forward(*r.recomputed)},
                  {"offloaded_bytes", r.recomputed->offloaded_bytes},
                  {"loads", r.recomputed->loaded},
                  {"offload_failure", r.offload_failure}};
  const Json report{
      {"config", config},
      {"steps", steps},
      {"validations", validations},
      {"validation_loss", r.validation_loss},
      {"validation_bytes", r.validation_bytes},
      {"loss_by_position", positions},
      {"loss_by_text", texts},
      {"baselines",
       {{"unigram", r.baselines.unigram}, {"bigram", r.baselines.bigram}, {"trigram", r.baselines.trigram}}},
      {"interrupted", r.interrupted},
      {"error", r.error.empty() ? Json() : Json(r.error)},
      {"seconds", r.seconds},
      {"tokens_per_second", r.tokens_per_second},
      {"peak_live_bytes", r.peak_live_bytes},
      {"peak_reserved_bytes", r.peak_reserved_bytes},
      {"pool_hit_rate", r.hit_rate},
      {"allocation_hash", fmt::format("{:016x}", r.allocation_hash)},
      {"bytes_by_category", categories},
      {"recomputed", recomputed},
      {"sample", r.prompt + r.sample}};
  return json_text(report);
}

std::string describe_step(const Trainer& trainer, const TrainResult& r, double eta) {
  const StepRecord& s = r.steps.back();
  const std::int64_t steps = trainer.options().steps;
  return fmt::format(
      "step {:>{}}/{}{}  loss {:.4f}  val {:.4f}  |g| {:.3f}  lr {:.2e}{}  {} ms/step  {} tok/s  mem {} live, {} "
      "reserved, {} peak  hits {:.1f}%  ETA {}",
      s.step, fmt::formatted_size("{}", steps), steps,
      trainer.options().warmup.stages.empty() ? "" : fmt::format("  context {}", s.context), s.loss,
      r.validations.back().second, s.gradient_norm, s.learning_rate, describe_scale(s),
      format_milliseconds(s.milliseconds), format_count(s.tokens_per_second), format_bytes(s.live_bytes),
      format_bytes(s.reserved_bytes), format_bytes(r.peak_live_bytes), 100 * r.hit_rate, format_duration(eta));
}

std::string describe_status(const StepRecord& s, std::int64_t steps, double eta) {
  return fmt::format("{} step {}/{}  loss {:.4f}  {} ms/step  ETA {}",
                     bar(static_cast<double>(s.step) / static_cast<double>(steps)), s.step, steps, s.loss,
                     format_milliseconds(s.milliseconds), format_duration(eta));
}

std::string describe_result(const TrainResult& r, const Trainer& trainer) {
  const Corpus& corpus = trainer.corpus();
  std::vector<double> losses;
  for (const StepRecord& step : r.steps) losses.push_back(step.loss);
  std::string text = "\n";
  if (!r.error.empty())
    text += fmt::format("failed   after step {}: {}\n", trainer.steps_done(), first_line(r.error));
  else if (r.interrupted)
    text += fmt::format("stopped after step {}\n", trainer.steps_done());
  if (!losses.empty())
    text += fmt::format("loss     {} {:.3f} to {:.3f}{}\n", sparkline(losses), losses.front(), losses.back(),
                        describe_scale(r.steps.back()));
  if (r.validation_bytes > 0)
    text += fmt::format(
        "held out {:.4f} nats per byte (unigram {:.4f}, bigram {:.4f}, trigram {:.4f}); {} bytes scored\n",
        r.validation_loss, r.baselines.unigram, r.baselines.bigram, r.baselines.trigram, r.validation_bytes);
  for (std::size_t i = 0; i < r.by_text.size(); ++i)
    text += fmt::format("         {:.4f} of {}\n", r.by_text[i], corpus.texts[i].path);
  if (!r.by_position.empty()) text += fmt::format("         {}\n", describe_positions(r.by_position, corpus));
  if (!r.steps.empty())
    text +=
        fmt::format("speed    {} tok/s, {} in all\n", format_count(r.tokens_per_second), format_duration(r.seconds));
  if (!r.sample.empty())
    text += fmt::format("sample   (the first {} bytes are validation text)\n{}\n", r.prompt.size(),
                        shown(r.prompt + r.sample));
  text += fmt::format("memory   peak {} live, {} reserved; peaks by category:\n", format_bytes(r.peak_live_bytes),
                      format_bytes(r.peak_reserved_bytes));
  for (std::size_t i = 0; i < category_count; ++i)
    if (r.bytes_by_category[i] > 0)
      text += fmt::format("         {:<16} {:>12}\n", to_string(static_cast<Category>(i)),
                          format_bytes(r.bytes_by_category[i]));
  if (r.recomputed) {
    text += fmt::format("again    {} of {} saved bytes dropped, {} operators run again: {:.1f} % of the forward's work",
                        format_bytes(r.recomputed->dropped_bytes), format_bytes(r.recomputed->saved_bytes),
                        r.recomputed->recomputed, 100 * share_of_forward(*r.recomputed));
    if (r.recomputed->offloaded > 0 || !r.offload_failure.empty())
      text +=
          fmt::format("\noffload  {} written, {} tensors read back{}{}", format_bytes(r.recomputed->offloaded_bytes),
                      r.recomputed->loaded, r.offload_failure.empty() ? "" : "; ", r.offload_failure);
    text += '\n';
  }
  text += fmt::format("requests hash {:016x}, {:.2f} % served from the pool", r.allocation_hash, 100 * r.hit_rate);
  for (const auto& [what, path] : r.written) text += fmt::format("\nwrote    {} {}", what, path);
  return text;
}

}  // namespace poolgrad::nn
