#include "nn/training/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/operators/arithmetic.h"
#include "nn/chunked.h"
#include "nn/training/progress.h"
#include "nn/training/random.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

namespace {

constexpr std::int64_t warmup_steps = 20;

/// FNV-1a of the text, by which a checkpoint knows it again.
std::string fingerprint(const std::vector<std::uint8_t>& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::uint8_t byte : text) hash = (hash ^ byte) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

Device device_of(const Module& model) {
  const std::vector<Tensor> parameters = model.parameters();
  return parameters.empty() ? cpu : parameters.front().device();
}

std::optional<LossScaler> scaler_for(const TrainerOptions& options, Device device) {
  return options.loss_scale ? std::optional<LossScaler>(std::in_place, device, *options.loss_scale) : std::nullopt;
}

/// Two numbers of one device, which is waited for once. 0 on sim.
std::pair<double, double> read_together(const Tensor& a, const Tensor& b) {
  const MemoryScope scope("read_together", Category::workspace);
  const Tensor both = Tensor::empty({2}, {.dtype = DType::f64, .device = a.device()});
  const auto part = [&](std::int64_t i) { return both.alias(sliced(both.geometry(), 0, i, i + 1, 1)); };
  part(0).copy_from(a);
  part(1).copy_from(b);
  if (both.device().is_sim()) return {0.0, 0.0};
  const std::vector<double> read = both.to_vector<double>();
  return {read[0], read[1]};
}

}  // namespace

TrainingStep::TrainingStep(const Module& model, Optimizer& optimizer, double clip_norm, std::string operation,
                           LossScaler* scaler)
    : model_(model),
      optimizer_(optimizer),
      clip_norm_(clip_norm),
      operation_(std::move(operation)),
      scaler_(scaler),
      pool_(allocator_for(device_of(model))),
      device_allocations_(pool_.statistics().num_device_alloc) {}

StepRecord TrainingStep::run(double learning_rate, double tokens, const std::function<Tensor()>& loss) {
  const Stopwatch watch;
  pool_.begin_step();
  StepRecord record{.step = steps_ + 1, .learning_rate = learning_rate};
  Tensor value;
  {
    const Tensor total = loss();
    value = total.detach();
    const MemoryScope scope("backward", Category::gradient);
    (scaler_ == nullptr ? total : scaler_->scaled(total * (1.0 / tokens))).backward();
  }
  double norm = 0;  // of the gradients as they are
  std::tie(record.loss, norm) = read_together(value, gradient_norm_tensor(model_.parameters()));
  if (scaler_ != nullptr) record.loss_scale = scaler_->scale();
  record.loss /= tokens;
  record.gradient_norm = std::abs(norm) / (scaler_ == nullptr ? tokens : record.loss_scale);
  if (!std::isfinite(record.loss) || (scaler_ == nullptr && !std::isfinite(norm)))
    throw ValueError(fmt::format("[{}] step {} diverged: loss {}, gradient norm {}", operation_, record.step,
                                 record.loss, record.gradient_norm));
  optimizer_.set_learning_rate(learning_rate);
  if (scaler_ == nullptr) {
    optimizer_.step(clip_scale(record.gradient_norm, clip_norm_) / tokens);
  } else {
    scaler_->step(optimizer_, norm, clip_norm_);
    record.skipped_steps = scaler_->state().skipped;
  }
  optimizer_.zero_grad();
  ++steps_;

  record.milliseconds = watch.milliseconds();
  record.tokens_per_second = tokens / record.milliseconds * 1e3;
  const Statistics statistics = pool_.statistics();
  record.live_bytes = statistics.allocated_bytes.current;
  record.reserved_bytes = statistics.reserved_bytes.current;
  record.device_allocations = statistics.num_device_alloc - device_allocations_;
  device_allocations_ = statistics.num_device_alloc;
  return record;
}

Trainer::Trainer(std::unique_ptr<LanguageModel> model, Corpus corpus, TrainerOptions options)
    : options_(options),
      model_(std::move(model)),
      corpus_(std::move(corpus)),
      device_(device_of(*model_)),
      optimizer_(model_->named_parameters(), {.learning_rate = options.learning_rate,
                                              .beta2 = 0.95,
                                              .weight_decay = options.weight_decay,
                                              .decay_matrices_only = true}),
      schedule_{
          .peak = options.learning_rate, .warmup = std::min(warmup_steps, options.steps / 2), .steps = options.steps},
      scaler_(scaler_for(options, device_)),
      step_(*model_, optimizer_, options.clip_norm, "train", scaler_ ? &*scaler_ : nullptr) {
  const std::int64_t context = model_->config().context;
  const auto bytes = static_cast<std::int64_t>(corpus_.train.size());
  if (bytes <= context)
    throw ValueError(fmt::format("[train] the text is shorter than the context: {} bytes to train on, --context {}",
                                 bytes, context));
  if (corpus_.validation.size() < 2) throw ValueError("[train] the text is too short to hold any of it out");
  if (options.batch < 1)
    throw ValueError(fmt::format("[train] the batch must be at least 1, but is {}", options.batch));
  if (options.chunk < 0 || options.store_every < 1)
    throw ValueError(
        fmt::format("[train] chunks must have at least 1 position (0: no chunks) and states be kept every "
                    "so many of them: chunk {}, store_every {}",
                    options.chunk, options.store_every));
}

void Trainer::resume(const std::string& path, bool other_text) {
  if (!other_text && read_training_metadata(path)["text"] != fingerprint(corpus_.train))
    throw ValueError("[train] the checkpoint " + path + " was trained on another text (--other-text allows it)");
  const TrainingState state = load_training_state(path, *model_, optimizer_);
  if (state.step > options_.steps)
    throw ValueError(
        fmt::format("[train] the checkpoint {} has done {} steps, --steps is {}", path, state.step, options_.steps));
  step_.set_steps(state.step);
  data_position_ = state.data_position;
  if (scaler_ && state.loss_scale) scaler_->load(*state.loss_scale);
  options_.generator->set_state(state.generator);
}

void Trainer::save(const std::string& path, std::map<std::string, std::string> metadata) const {
  metadata["text"] = fingerprint(corpus_.train);
  save_training_state(path, *model_, optimizer_,
                      {.step = step_.steps(),
                       .data_position = data_position_,
                       .generator = options_.generator->state(),
                       .loss_scale = scaler_ ? std::optional(scaler_->state()) : std::nullopt,
                       .metadata = std::move(metadata)});
}

StepRecord Trainer::step() {
  const std::int64_t context = model_->config().context;
  TextWindows batch;  // lives until the step is done
  return step_.run(schedule_.rate(step_.steps() + 1), static_cast<double>(options_.batch * context), [&] {
    std::vector<std::int64_t> starts;
    const std::uint64_t last_start = corpus_.train.size() - static_cast<std::size_t>(context);
    for (std::int64_t row = 0; row < options_.batch; ++row)
      starts.push_back(static_cast<std::int64_t>(
          random_below(options_.seed, static_cast<std::uint64_t>(data_position_++), last_start)));
    batch = windows_of(corpus_.train, starts, context, device_);
    return loss_of(batch);
  });
}

Tensor Trainer::loss_of(const TextWindows& batch) {
  const AutocastScope autocast(options_.autocast);
  if (options_.chunk == 0) return model_->loss(batch.tokens, batch.targets, true);
  return chunked_loss(*model_, batch.tokens, batch.targets,
                      {.chunk = options_.chunk, .store_every = options_.store_every});
}

std::int64_t Trainer::validation_length() const {
  return std::min(model_->config().context, static_cast<std::int64_t>(corpus_.validation.size()) - 1);
}

std::int64_t Trainer::validation_batches() const {
  const auto bytes = static_cast<std::int64_t>(corpus_.validation.size()) - 1;
  return std::max<std::int64_t>(1, bytes / (validation_length() * options_.batch));
}

double Trainer::validate(std::int64_t batches) {
  const NoGradGuard no_grad;
  const std::int64_t length = validation_length();
  const std::int64_t last_start = static_cast<std::int64_t>(corpus_.validation.size()) - 1 - length;
  const std::int64_t windows = std::min(batches, validation_batches()) * options_.batch;
  model_->eval();
  double sum = 0;
  for (std::int64_t window = 0; window < windows;) {
    std::vector<std::int64_t> starts;
    for (std::int64_t row = 0; row < options_.batch; ++row, ++window)
      starts.push_back(windows > 1 ? last_start * window / (windows - 1) : 0);
    const TextWindows batch = windows_of(corpus_.validation, starts, length, device_);
    sum += loss_of(batch).item();
  }
  model_->train();
  return sum / static_cast<double>(windows * length);
}

// The run: what it prints and writes.

namespace {

constexpr std::int64_t interim_batches = 4;
constexpr std::int64_t prompt_bytes = 64;
constexpr double sample_temperature = 0.8;

using Json = nlohmann::ordered_json;

/// Calls f(name, value) for all that files say of a step.
template <class F>
void for_each_field(const StepRecord& s, const F& f) {
  f("step", s.step);
  f("loss", s.loss);
  f("gradient_norm", s.gradient_norm);
  f("learning_rate", s.learning_rate);
  f("milliseconds", s.milliseconds);
  f("tokens_per_second", s.tokens_per_second);
  f("live_bytes", s.live_bytes);
  f("reserved_bytes", s.reserved_bytes);
  f("device_allocations", s.device_allocations);
  f("loss_scale", s.loss_scale);
  f("skipped_steps", s.skipped_steps);
}

/// Work done again over the work recorded, by the prices of the device.
double share_of_forward(const RematerialisationStatistics& s) {
  return s.recorded_nanoseconds > 0 ? s.recomputed_nanoseconds / s.recorded_nanoseconds : 0.0;
}

std::string json_report(const TrainResult& r, const Json& config) {
  Json steps = Json::array(), validations = Json::array(), categories;
  for (const StepRecord& record : r.steps) {
    Json step;
    for_each_field(record, [&](const char* name, auto value) { step[name] = value; });
    steps.push_back(std::move(step));
  }
  for (const auto& [step, loss] : r.validations) validations.push_back({{"step", step}, {"loss", loss}});
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
      {"baselines",
       {{"unigram", r.baselines.unigram}, {"bigram", r.baselines.bigram}, {"trigram", r.baselines.trigram}}},
      {"interrupted", r.interrupted},
      {"seconds", r.seconds},
      {"tokens_per_second", r.tokens_per_second},
      {"peak_live_bytes", r.peak_live_bytes},
      {"peak_reserved_bytes", r.peak_reserved_bytes},
      {"pool_hit_rate", r.hit_rate},
      {"allocation_hash", fmt::format("{:016x}", r.allocation_hash)},
      {"bytes_by_category", categories},
      {"recomputed", recomputed},
      {"sample", r.prompt + r.sample}};
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string csv_report(const TrainResult& result) {
  std::string header, lines;
  for_each_field({}, [&](const char* name, auto) { header += (header.empty() ? "" : ",") + std::string(name); });
  for (const StepRecord& record : result.steps) {
    std::string line;
    for_each_field(record,
                   [&](const char*, auto value) { line += fmt::format("{}{}", line.empty() ? "" : ",", value); });
    lines += line + "\n";
  }
  return header + "\n" + lines;
}

/// Text as a terminal can show it, line breaks and printable ASCII, behind a margin.
std::string shown(const std::string& text) {
  std::string result = "  | ";
  for (const char c : text) {
    if (c == '\n')
      result += "\n  | ";
    else if (c == '\t' || (c >= 0x20 && c < 0x7f))
      result += c;
    else if (c != '\r')
      result += '?';
  }
  return result;
}

/// "  scale 32768, 3 skipped"; nothing for a loss that is not scaled.
std::string describe_scale(const StepRecord& s) {
  return s.loss_scale == 1 && s.skipped_steps == 0
             ? ""
             : fmt::format("  scale {}, {} skipped", s.loss_scale, s.skipped_steps);
}

/// The line of a report interval, about the last step; `eta` in seconds.
std::string describe_step(const Trainer& trainer, const TrainResult& r, double eta) {
  const StepRecord& s = r.steps.back();
  const std::int64_t steps = trainer.options().steps;
  return fmt::format(
      "step {:>{}}/{}  loss {:.4f}  val {:.4f}  |g| {:.3f}  lr {:.2e}{}  {:.0f} ms/step  {} tok/s  mem {} live, {} "
      "reserved, {} peak  hits {:.1f}%  ETA {}",
      s.step, fmt::formatted_size("{}", steps), steps, s.loss, r.validations.back().second, s.gradient_norm,
      s.learning_rate, describe_scale(s), s.milliseconds, format_count(s.tokens_per_second), format_bytes(s.live_bytes),
      format_bytes(s.reserved_bytes), format_bytes(r.peak_live_bytes), 100 * r.hit_rate, format_duration(eta));
}

/// The live line between reports.
std::string describe_status(const StepRecord& s, std::int64_t steps, double eta) {
  return fmt::format("{} step {}/{}  loss {:.4f}  {:.0f} ms/step  ETA {}",
                     bar(static_cast<double>(s.step) / static_cast<double>(steps)), s.step, steps, s.loss,
                     s.milliseconds, format_duration(eta));
}

/// The report at the end: loss curve, validation beside the baselines, sample, memory by category, files.
std::string describe_result(const TrainResult& r) {
  std::vector<double> losses;
  for (const StepRecord& step : r.steps) losses.push_back(step.loss);
  std::string text = r.interrupted ? fmt::format("\nstopped after step {}\n", r.steps.back().step) : "\n";
  if (!losses.empty())
    text += fmt::format("loss     {} {:.3f} to {:.3f}{}\n", sparkline(losses), losses.front(), losses.back(),
                        describe_scale(r.steps.back()));
  text +=
      fmt::format("held out {:.4f} nats per byte (unigram {:.4f}, bigram {:.4f}, trigram {:.4f}); {} bytes scored\n",
                  r.validation_loss, r.baselines.unigram, r.baselines.bigram, r.baselines.trigram, r.validation_bytes);
  text += fmt::format("speed    {} tok/s, {} in all\n", format_count(r.tokens_per_second), format_duration(r.seconds));
  if (!r.sample.empty())
    text += fmt::format("sample   (the first {} bytes are held-out text)\n{}\n", r.prompt.size(),
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

/// `prompt_bytes` bytes from the middle of the held-out text, from the start of a line.
std::string prompt_from(const Corpus& corpus, std::int64_t context) {
  auto begin = corpus.validation.begin() + static_cast<std::ptrdiff_t>(corpus.validation.size() / 2);
  const auto line = std::find(begin, corpus.validation.end(), '\n');
  if (line != corpus.validation.end()) begin = line + 1;
  const auto length = std::min<std::ptrdiff_t>({prompt_bytes, context / 2, corpus.validation.end() - begin});
  return length > 0 ? std::string(begin, begin + length) : "\n";
}

void take_statistics(const CachingAllocator& pool, TrainResult& result) {
  const Statistics statistics = pool.statistics();
  result.peak_live_bytes = statistics.allocated_bytes.peak;
  result.peak_reserved_bytes = statistics.reserved_bytes.peak;
  result.hit_rate = statistics.hit_rate();
  result.allocation_hash = pool.sequence_hash();
  for (std::size_t i = 0; i < category_count; ++i) result.bytes_by_category[i] = statistics.category_bytes[i].peak;
}

/// The steps, with a line where one is due.
void take_steps(Trainer& trainer, const RunOptions& options, Progress& progress, TrainResult& result) {
  const std::int64_t first = trainer.steps_done(), steps = trainer.options().steps;
  double milliseconds = 0, tokens = 0;
  const Stopwatch watch;
  while (trainer.steps_done() < steps && !result.interrupted) {
    const StepRecord& record = result.steps.emplace_back(trainer.step());
    milliseconds += record.milliseconds;
    tokens += static_cast<double>(trainer.options().batch * trainer.model().config().context);
    result.interrupted = InterruptGuard::interrupted() || record.step == options.stop_after;
    const bool reports = record.step == first + 1 || record.step % std::max<std::int64_t>(options.report, 1) == 0 ||
                         record.step == steps || result.interrupted;
    if (reports) result.validations.emplace_back(record.step, trainer.validate(interim_batches));
    const double done = static_cast<double>(record.step - first);
    const double eta = watch.seconds() / done * static_cast<double>(steps - record.step);
    take_statistics(trainer.pool(), result);
    if (reports && !options.quiet)
      progress.line(describe_step(trainer, result, eta));
    else if (!reports)
      progress.status(describe_status(record, steps, eta));
  }
  if (milliseconds > 0) result.tokens_per_second = tokens / milliseconds * 1e3;
}

/// Held-out loss and a sample, of a run that was not stopped.
void judge(Trainer& trainer, std::int64_t sample, TrainResult& result) {
  // A short run is not held up by a long text: at most a quarter of the bytes that were trained on.
  const std::int64_t batches = std::clamp<std::int64_t>(trainer.options().steps / 4, 1, trainer.validation_batches());
  result.validation_loss = trainer.validate(batches);
  result.validation_bytes = batches * trainer.validation_batch_bytes();
  result.prompt = prompt_from(trainer.corpus(), trainer.model().config().context);
  trainer.model().eval();
  result.sample =
      sample_text(trainer.model(), result.prompt, sample, sample_temperature, trainer.options().seed, trainer.device());
}

}  // namespace

TrainResult train(Trainer& trainer, std::ostream& out, RunOptions options) {
  const Stopwatch watch;
  const Json config = Json::parse(options.config, nullptr, false);
  if (config.is_discarded()) throw ValueError("[train] the configuration of the report is no JSON: " + options.config);
  const InterruptGuard interrupts;
  Progress progress(out, options.live && !options.quiet);
  TrainResult result;
  take_steps(trainer, options, progress, result);
  if (options.save.empty() && result.interrupted && !trainer.device().is_sim() && options.stop_after == 0)
    options.save = "poolgrad-train.safetensors";
  if (!options.save.empty()) {
    trainer.save(options.save, options.metadata);
    result.written.emplace_back("checkpoint", options.save);
  }
  if (!result.interrupted) {
    judge(trainer, options.sample, result);
  } else {
    result.validation_loss = result.validations.back().second;
    result.validation_bytes = interim_batches * trainer.validation_batch_bytes();
  }
  take_statistics(trainer.pool(), result);
  if (options.memory != nullptr) {
    result.recomputed = options.memory->statistics();
    result.offload_failure = options.memory->offload_failure();
  }
  result.baselines = ngram_baselines(trainer.corpus().train, trainer.corpus().validation);
  result.seconds = watch.seconds();
  if (!options.json.empty()) {
    result.written.emplace_back("report", options.json);
    write_text(options.json, json_report(result, config), "train");
  }
  if (!options.csv.empty()) {
    result.written.emplace_back("steps", options.csv);
    write_text(options.csv, csv_report(result), "train");
  }
  if (!options.quiet) progress.line(describe_result(result));
  return result;
}

}  // namespace poolgrad::nn
