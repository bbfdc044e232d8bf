// A training run with its printed lines and files.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "nn/training/metrics.h"
#include "nn/training/progress.h"
#include "nn/training/trainer.h"

namespace poolgrad::nn {

namespace {

constexpr std::int64_t prompt_tokens = 64;
constexpr std::int64_t most_searched_for_a_line = std::int64_t{16} << 20;  // tokens
constexpr std::size_t traced_events = std::size_t{1} << 19;                // of a step

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

/// Returns the JSON report.
std::string json_report(const TrainResult& r, const Corpus& corpus) {
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
      {"config", Json::parse(r.config)},
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

/// Returns the line of a report interval, about the last step. `eta` is in seconds.
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

/// Returns the live line between reports.
std::string describe_status(const StepRecord& s, std::int64_t steps, double eta) {
  return fmt::format("{} step {}/{}  loss {:.4f}  {} ms/step  ETA {}",
                     bar(static_cast<double>(s.step) / static_cast<double>(steps)), s.step, steps, s.loss,
                     format_milliseconds(s.milliseconds), format_duration(eta));
}

/// Returns the final report: loss curve, validation with baselines, sample, memory by category, files.
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

/// Returns `prompt_tokens` tokens from the middle of the (first) validation text, from the start of a line.
std::vector<std::int64_t> prompt_from(const Corpus& corpus, std::int64_t context) {
  const Text& text = corpus.texts.front().validation_tokens;
  const std::int64_t middle = text.size() / 2;
  std::int64_t begin = middle;
  constexpr std::int64_t at_once = 4096;
  const std::int64_t end = std::min(text.size(), middle + most_searched_for_a_line);
  for (std::int64_t i = middle; begin == middle && i < end; i += at_once) {
    const std::vector<std::int32_t> part = text.read(i, std::min(at_once, end - i));
    const auto line = std::ranges::find_if(
        part, [&](std::int32_t token) { return corpus.tokenizer->bytes_of(token).ends_with('\n'); });
    if (line != part.end()) begin = i + (line - part.begin()) + 1;
  }
  const std::int64_t length = std::min({prompt_tokens, context / 2, text.size() - begin});
  if (length <= 0) return corpus.tokenizer->encode("\n");
  const std::vector<std::int32_t> tokens = text.read(begin, length);
  return {tokens.begin(), tokens.end()};
}

void take_statistics(const Trainer& trainer, TrainResult& result) {
  const CachingAllocator& pool = trainer.pool();
  const Statistics statistics = pool.statistics(), recorded = trainer.recorded_memory();
  const auto peak = [](const auto& own, const auto& of_recorded) {  // a recorded step has memory of its own
    return std::max(own.peak, own.current + of_recorded.peak);
  };
  result.peak_live_bytes = peak(statistics.allocated_bytes, recorded.allocated_bytes);
  result.peak_reserved_bytes = peak(statistics.reserved_bytes, recorded.reserved_bytes);
  result.hit_rate = statistics.hit_rate();
  result.allocation_hash = pool.sequence_hash();
  for (std::size_t i = 0; i < category_count; ++i) result.bytes_by_category[i] = statistics.category_bytes[i].peak;
}

StepRecord traced_step(Trainer& trainer, std::optional<Trace>& trace) {
  trainer.pool().start_trace(traced_events);
  const auto stop = [](CachingAllocator* pool) { pool->stop_trace(); };
  const std::unique_ptr<CachingAllocator, decltype(stop)> tracing(&trainer.pool(), stop);
  const StepRecord record = trainer.step();
  trace = trainer.pool().trace();
  return record;
}

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(Json(text).dump());
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

bool leads(const Trainer& trainer) {
  return trainer.options().ranks == nullptr || trainer.options().ranks->rank() == 0;
}

/// Returns the first of "poolgrad-train.safetensors", "poolgrad-train-2.safetensors", ... that does not exist, even as
/// a link.
std::string unused_name() {
  std::error_code unknown;
  std::string name = "poolgrad-train.safetensors";
  for (int i = 2; std::filesystem::exists(std::filesystem::symlink_status(name, unknown)); ++i)
    name = fmt::format("poolgrad-train-{}.safetensors", i);
  return name;
}

/// Returns paths for the last checkpoint if it cannot be written to its own. Other users can write to the folder of
/// temporary files, so the name there is unpredictable.
std::vector<std::string> other_places(const Trainer& trainer) {
  if (trainer.device().is_sim()) return {};
  std::error_code none;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(none);
  std::vector<std::string> places{unused_name()};
  std::random_device random;
  if (!none) places.push_back(temporary / fmt::format("poolgrad-train-{:08x}{:08x}.safetensors", random(), random()));
  return places;
}

/// Returns whether any rank was interrupted, so that all stop after the same step or batch.
bool interrupted_anywhere(const Trainer& trainer) {
  double interrupted = InterruptGuard::interrupted() ? 1 : 0;
  if (Ranks* const ranks = trainer.options().ranks) ranks->sum({&interrupted, 1});
  return interrupted > 0;
}

/// Validation at a line: a part of the validation text, but all of a text of its own.
std::int64_t interim_batches(const Trainer& trainer) {
  constexpr std::int64_t usual = 4;
  return trainer.corpus().own_validation ? trainer.validation_batches() : usual;
}

/// Limits the last validation to a quarter of the trained bytes, so that a long text does not delay a short run.
std::int64_t judged_batches(const Trainer& trainer) {
  if (trainer.corpus().own_validation) return trainer.validation_batches();
  return std::clamp<std::int64_t>(trainer.options().steps * trainer.options().accumulate / 4, 1,
                                  trainer.validation_batches());
}

/// A failed write does not end the run: the next one may succeed.
void save_between(const Trainer& trainer, const RunOptions& options, Progress& progress) {
  try {
    trainer.save(options.save, options.metadata);
  } catch (const FileError& error) {
    if (!options.quiet) progress.line(fmt::format("no checkpoint of step {}: {}", trainer.steps_done(), error.what()));
  }
}

/// Takes the steps and prints the due lines. `validation` receives the last validation loss.
void take_steps(Trainer& trainer, const RunOptions& options, Progress& progress, MetricsFile& metrics,
                TrainResult& result, ValidationLoss& validation) {
  const std::int64_t first = trainer.steps_done(), steps = trainer.options().steps;
  const bool stops = options.stop_after > 0 && options.stop_after < steps;
  const std::int64_t last = stops ? options.stop_after : steps;
  double milliseconds = 0, tokens = 0, judgement = 0;  // judgement: estimated seconds of the final validation
  const Stopwatch watch;
  bool diverged = false;
  while (trainer.steps_done() < steps && !result.interrupted) {
    std::optional<ScopeStatus> within;
    if (options.live && (result.steps.empty() || result.steps.back().milliseconds > 2000))
      within.emplace(progress, fmt::format("step {}/{}", trainer.steps_done() + 1, steps));
    const auto step_tokens = static_cast<double>(trainer.step_tokens());
    const std::size_t traced = trainer.options().graph ? 0 : 1;  // only the first recorded step allocates from the pool
    if (options.trace_step && !result.step_trace &&
        (result.steps.size() == traced || trainer.steps_done() + 1 == steps))
      result.steps.push_back(traced_step(trainer, result.step_trace));
    else
      result.steps.push_back(trainer.step());
    within.reset();
    const StepRecord& record = result.steps.back();
    milliseconds += record.milliseconds;
    tokens += step_tokens;
    result.tokens_per_second = tokens / milliseconds * 1e3;
    result.interrupted = interrupted_anywhere(trainer) || record.step == options.stop_after;
    if (options.save_every > 0 && record.step % options.save_every == 0 && record.step < steps && !result.interrupted)
      save_between(trainer, options, progress);
    const bool reports = record.step == first + 1 || record.step % std::max<std::int64_t>(options.report, 1) == 0 ||
                         record.step == steps || result.interrupted;
    if (reports) {
      const Stopwatch scoring;
      validation = trainer.validate(interim_batches(trainer));
      judgement = stops ? 0
                        : scoring.seconds() * static_cast<double>(judged_batches(trainer)) /
                              static_cast<double>(std::min(interim_batches(trainer), trainer.validation_batches()));
      result.validations.emplace_back(record.step, validation.loss);
      diverged = !std::isfinite(validation.loss);
    }
    const double done = static_cast<double>(record.step - first);
    const double eta = watch.seconds() / done * static_cast<double>(last - record.step) + judgement;
    take_statistics(trainer, result);
    if (reports) metrics.add(record, validation.loss, result.peak_live_bytes);
    if (reports && !options.quiet) progress.line(describe_step(trainer, result, eta));
    if (reports && options.reported) {
      result.seconds = watch.seconds();
      try {
        options.reported(trainer, result, false);
      } catch (const FileError&) {  // does not end the run, which reports it at its end
      }
    }
    if (!reports) progress.status(describe_status(record, steps, eta));
    if (diverged)  // the weights have diverged: the next step would fail
      throw ValueError(
          fmt::format("[train] step {} diverged: validation loss {} after it", record.step, validation.loss));
  }
}

/// Returns mean losses after 1, 2, 3 to 4, 5 to 8, ... tokens of context.
std::vector<PositionLoss> in_octaves(const ValidationLoss& validation) {
  std::vector<PositionLoss> result;
  const std::int64_t length = std::ssize(validation.by_position);
  for (std::int64_t first = 1, last = 1; first <= length; first = last + 1, last = std::min(2 * last, length)) {
    double nats = 0, share = 0;
    for (auto i = static_cast<std::size_t>(first - 1); i < static_cast<std::size_t>(last); ++i) {
      nats += validation.by_position[i] * validation.shares[i];
      share += validation.shares[i];
    }
    result.push_back({first, last, nats / share});
  }
  return result;
}

/// Computes the validation loss and writes a sample. Returns false if the user stops it.
bool judge(Trainer& trainer, std::int64_t sample, Progress& progress, TrainResult& result) {
  const std::int64_t batches = judged_batches(trainer), all = trainer.scored_batches(batches);
  const Stopwatch watch;
  double scored = 0;
  const auto show = [&] {
    const double left = static_cast<double>(all) - scored;
    progress.status(fmt::format("{} validation: {} of {} batches{}", bar(scored / static_cast<double>(all)), scored,
                                all, scored > 0 ? "  ETA " + format_duration(watch.seconds() / scored * left) : ""));
  };
  show();
  const ValidationLoss validation = trainer.loss_by_position(batches, [&] {
    ++scored;
    show();
    return interrupted_anywhere(trainer);
  });
  if (validation.bytes == 0) return false;
  if (!std::isfinite(validation.loss))
    throw ValueError(
        fmt::format("[train] the validation loss is {} after step {}", validation.loss, trainer.steps_done()));
  result.validation_loss = validation.loss;
  result.by_position = in_octaves(validation);
  result.by_text = validation.by_text;
  result.validation_bytes = validation.bytes;
  if (!leads(trainer)) return true;
  const std::vector<std::int64_t> prompt = prompt_from(trainer.corpus(), trainer.model().config().context);
  result.prompt = trainer.corpus().tokenizer->decode(prompt);
  progress.status(fmt::format("writing a sample of {} tokens", sample));
  result.sample = trainer.sample(prompt, sample);
  return true;
}

}  // namespace

TrainResult train(Trainer& trainer, std::ostream& out, RunOptions options) {
  const Stopwatch watch;
  TrainResult result;
  result.config = options.config;
  if (!Json::accept(options.config))
    throw ValueError("[train] the configuration of the report is not JSON: " + printable(options.config));
  for (const auto& [name, text] : options.metadata)
    if (!is_utf8(name) || !is_utf8(text))
      throw ValueError("[train] metadata of the checkpoint are not UTF-8: " + printable(name));
  if (options.stop_after > 0 && options.stop_after <= trainer.steps_done())
    throw ValueError(fmt::format("[train] --stop-after {} is in the past: the run resumes after step {}",
                                 options.stop_after, trainer.steps_done()));
  if (!leads(trainer)) options.quiet = true, options.json = options.metrics = "", options.reported = {};
  options.quiet |= options.json == "-";
  const bool stops = options.stop_after > 0 && options.stop_after <= trainer.options().steps;
  const bool needs_a_name = options.save.empty() && options.save_unasked && !trainer.device().is_sim();
  if (leads(trainer)) check_replaceable(needs_a_name && stops ? unused_name() : options.save, "train");
  check_writable(options.json, "train");
  MetricsFile metrics(options.metrics, trainer.steps_done());
  const InterruptGuard interrupts;
  Progress progress(out, options.live && !options.quiet);
  if (!options.quiet && !options.save.empty())  // while the user can still make room
    if (const std::string note = no_room_for(options.save, trainer.checkpoint_bytes(), options.save_every > 0);
        !note.empty())
      progress.line("note     the checkpoint " + note);
  if (leads(trainer)) result.baselines = ngram_baselines(trainer.corpus());
  // An error of the steps or the validation is rethrown after everything known has been written.
  std::exception_ptr failure;
  const auto succeeds = [&](const auto& f) {
    try {
      f();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      result.error = error.what();
    }
    return !failure;
  };
  ValidationLoss last{.loss = std::nan("")};
  const bool trained = succeeds([&] { take_steps(trainer, options, progress, metrics, result, last); });
  if (needs_a_name && result.interrupted) options.save = unused_name();
  // If a file cannot be written, the others and the printed report still are. The first error is rethrown at the end.
  std::exception_ptr unwritten;
  const auto attempt = [&](const auto& f) {
    try {
      f();
    } catch (const std::exception&) {
      if (!unwritten) unwritten = std::current_exception();
    }
  };
  const auto write = [&](const char* what, const std::string& path, const auto& f) {
    if (path.empty()) return;
    attempt([&] {
      f();
      if (leads(trainer)) result.written.emplace_back(what, path);
    });
  };
  if (trained)
    write("checkpoint", options.save, [&] { trainer.save(options.save, options.metadata, other_places(trainer)); });
  bool judged = false;
  if (trained && !result.interrupted) succeeds([&] { judged = judge(trainer, options.sample, progress, result); });
  if (!judged) {
    result.interrupted |= !failure;
    result.validation_loss = last.loss;
    result.by_text = last.by_text;
    result.validation_bytes = last.bytes;
  }
  take_statistics(trainer, result);
  if (options.memory != nullptr) {
    result.recomputed = options.memory->statistics();
    result.offload_failure = options.memory->offload_failure();
  }
  result.seconds = watch.seconds();
  write("report", options.json, [&] { write_text(options.json, json_report(result, trainer.corpus()), "train", out); });
  write("metrics", options.metrics, [&] { metrics.check(); });
  if (options.reported) attempt([&] { options.reported(trainer, result, true); });
  if (!options.quiet) progress.line(describe_result(result, trainer));
  for (const std::exception_ptr& reason : {failure, unwritten})
    if (reason) std::rethrow_exception(reason);
  return result;
}

}  // namespace poolgrad::nn
