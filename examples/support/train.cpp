#include "examples/support/train.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string_view>

#include "allocator/error.h"
#include "kernels/gemm.h"
#include "kernels/instruction_sets.h"
#include "kernels/parallel.h"
#include "nn/training/progress.h"

namespace poolgrad::examples {

namespace {

template <class T>
std::string to_text(const T& value) {
  return fmt::format("{}", value);
}

std::string to_text(const std::vector<std::int64_t>& values) { return fmt::format("{}", fmt::join(values, ",")); }

void from_text(const std::string&, const std::string& text, std::string& value) { value = text; }
template <class T>
void from_text(const std::string& name, const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw FileError("[train] the checkpoint's " + name + " is malformed: " + text.substr(0, 40));
}
void from_text(const std::string& name, const std::string& text, std::vector<std::int64_t>& values) {
  values.clear();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    from_text(name, text.substr(begin, end - begin), values.emplace_back());
    begin = end + 1;
  }
}

/// How long and how fast a model learns is no part of what it is.
bool may_change_on_resuming(std::string_view name) { return name == "steps" || name == "lr" || name == "schedule"; }

/// Of checkpoints that say nothing of it, being older: "" where all say it.
std::string_view value_before(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> came_later[] = {
      {"chunk", "0"},         {"tile", "0"},          {"autocast", "none"},
      {"loss-scale", "none"}, {"optimizer", "adamw"}, {"schedule", "cosine"}};
  for (const auto& [later, before] : came_later)
    if (name == later) return before;
  return "";
}

/// Calls f(name, member, help) for every option that decides the numbers of a run.
template <class Options, class F>
void for_each_setting(Options& o, F&& f) {
  f("context", o.context, "Bytes that the model sees at once");
  f("layers", o.layers, "Transformer blocks");
  f("width", o.width, "Width of the model");
  f("heads", o.heads, "Attention heads");
  f("kv-heads", o.kv_heads, "Key and value heads (0: as many as heads)");
  f("attention", o.attention.attention, fmt::format("{}", fmt::join(attention_names(), ", ")));
  for_each_attention_setting(o.attention, f);
  f("batch", o.batch, "Sequences per step");
  f("chunk", o.chunk, "Positions that go through all layers at once, for sequences longer than memory (0: all)");
  f("tile", o.tile, "Positions that feed-forward layers take at a time (0: all)");
  f("steps", o.steps, "Training steps");
  f("lr", o.lr, "Peak learning rate");
  f("optimizer", o.optimizer, "adamw, sgd, lion or muon");
  f("schedule", o.schedule, "The learning rate after 20 steps of warm-up: cosine, linear, constant or wsd");
  f("dropout", o.dropout, "Dropout of embeddings and residual branches");
  f("seed", o.seed, "Decides the split, the batches and the initial weights");
  f("dtype", o.dtype, "Activations: f32, f64, bf16 or f16 (parameters: f64 for f64, else f32)");
  f("autocast", o.autocast, "Products and attention between f32 activations: none, bf16 or f16");
  f("loss-scale", o.loss_scale, "Of f16: the scale to begin with, none, or auto: 65536 where anything is f16");
}

/// Nanoseconds a byte: norms, activations and sums cost less, products of the widths that are trained here more.
constexpr double selective_price = 1.0;

/// The part of a policy that cuts the model into checkpoints.
nn::Checkpointing stages_of(const std::string& policy) {
  if (policy == "selective" || policy == "budget") return {};
  try {
    return nn::Checkpointing::parse(policy);
  } catch (const ValueError&) {
    throw ValueError(
        "[train] --checkpoint must be none, selective, block, sqrt, revolve, revolve:SLOTS, budget or auto, "
        "but is " +
        policy);
  }
}

/// Text, model and device, before the first step.
std::string describe_run(const TrainOptions& o, nn::Trainer& trainer) {
  const nn::Corpus& corpus = trainer.corpus();
  std::string paths;
  for (const std::string& path : o.text) paths += " " + path;
  return fmt::format(
      "text     {} files, {} to train on, {} held out:{}\n"
      "model    {} parameters: {} layers, width {}, {} heads ({} for keys), context {}, {}\n"
      "device   {}, {}{}{}, {}{}{}{}{}{}{}",
      corpus.files, format_bytes(corpus.train.size()), format_bytes(corpus.validation.size()), paths,
      nn::format_count(static_cast<double>(trainer.model().parameter_count())), o.layers, o.width, o.heads,
      o.model().kv_heads, o.context, o.attention.describe(o.context), o.device, o.dtype,
      o.autocast == "none" ? "" : " with products in " + o.autocast,
      o.loss_scaler() ? fmt::format(", loss scaled by {} at first", o.loss_scaler()->initial) : "",
      engines_of(trainer.device()).to_string(),
      o.optimizer == "adamw" && o.schedule == "cosine" ? "" : fmt::format(", by {}, rate {}", o.optimizer, o.schedule),
      o.chunk ? fmt::format(", in chunks of {}", o.chunk) : "", o.budget.empty() ? "" : ", budget " + o.budget,
      o.checkpoint_policy() == "none" ? "" : ", checkpoints by " + o.checkpoint_policy(),
      o.offload.empty() ? "" : ", offload to " + o.offload,
      o.tile ? fmt::format(", feed-forward in tiles of {}", o.tile) : "");
}

/// "config" of the report.
nlohmann::ordered_json describe_configuration(const TrainOptions& o, nn::Trainer& trainer) {
  const Engines engines = engines_of(trainer.device());
  return {{"text", o.text},
          {"files", trainer.corpus().files},
          {"train_bytes", trainer.corpus().train.size()},
          {"held_out_bytes", trainer.corpus().validation.size()},
          {"context", o.context},
          {"layers", o.layers},
          {"width", o.width},
          {"heads", o.heads},
          {"kv_heads", o.model().kv_heads},
          {"attention", o.attention.attention},
          {"pattern", o.attention.describe(o.context)},
          {"window", o.attention.window},
          {"batch", o.batch},
          {"chunk", o.chunk},
          {"store_every", o.store_every},
          {"steps", o.steps},
          {"lr", o.lr},
          {"optimizer", o.optimizer},
          {"schedule", o.schedule},
          {"dropout", o.dropout},
          {"seed", o.seed},
          {"dtype", o.dtype},
          {"autocast", o.autocast},
          {"loss_scale", o.loss_scaler() ? nlohmann::ordered_json(o.loss_scaler()->initial) : nullptr},
          {"device", o.device},
          {"budget", o.budget},
          {"checkpoint", o.checkpoint_policy()},
          {"offload", o.offload},
          {"tile", o.tile},
          {"resume", o.resume},
          {"parameters", trainer.model().parameter_count()},
          {"threads", kernels::num_threads()},
          {"machine", engines.machine},
          {"gemm", engines.products},
          {"instruction_set", engines.attention}};
}

}  // namespace

std::string TrainOptions::checkpoint_policy() const {
  if (checkpoint != "auto") return checkpoint;
  return budget.empty() ? "none" : "budget";
}

std::unique_ptr<Rematerialisation> TrainOptions::memory_policy(Device on) const {
  const std::string policy = checkpoint_policy();
  const bool chooses = policy == "selective" || policy == "budget";
  if (!chooses && offload.empty()) return nullptr;
  auto memory = std::make_unique<Rematerialisation>(
      RematerialisationOptions{.drop_below = policy == "selective" ? selective_price : 0.0,
                               .offload_folder = offload,
                               .offload_all = !chooses,
                               .device = on});
  if (policy == "budget") allocator_for(on).add_client(memory->client());
  return memory;
}

void TrainOptions::check() const {
  const auto refuse = [](const std::string& reason) { throw ValueError("[train] " + reason); };
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"batch", batch}, {"report", report}, {"store-every", store_every}};
  for (const auto& [name, size] : sizes)
    if (size < 1) refuse(fmt::format("--{} must be at least 1, but is {}", name, size));
  if (chunk < 0) refuse(fmt::format("--chunk must not be negative, but is {}", chunk));
  if (steps < 0 || sample < 0 || stop_after < 0) refuse("--steps, --sample and --stop-after must not be negative");
  if (!(lr > 0)) refuse(fmt::format("--lr must be positive, but is {}", lr));
  if (!(dropout >= 0 && dropout < 1)) refuse(fmt::format("--dropout must be in [0, 1), but is {}", dropout));
  if (checkpoint == "budget" && budget.empty()) refuse("--checkpoint budget needs --budget");
  if (stages_of(checkpoint_policy()).kind != nn::Checkpointing::Kind::none && chunk > 0)
    refuse("--checkpoint " + checkpoint + " does nothing with --chunk, which computes every chunk again anyway");
  model().check();
  pattern();
  loss_scaler();
  nn::parse_optimizer(optimizer);
  nn::Schedule::parse(schedule);
  if (other_text && resume.empty()) refuse("--other-text needs --resume");
  if (device.starts_with("sim") && !(save.empty() && resume.empty()))
    refuse("--device " + device + " has no bytes to save or resume");
}

std::map<std::string, std::string> TrainOptions::configuration() const {
  std::map<std::string, std::string> result;
  for_each_setting(*this, [&](const char* name, const auto& value, const auto&) { result[name] = to_text(value); });
  return result;
}

void TrainOptions::adopt(const std::map<std::string, std::string>& configuration) {
  for_each_setting(*this, [&](const char* name, auto& value, const auto&) {
    const auto entry = configuration.find(name);
    const std::string there(entry == configuration.end() ? value_before(name) : entry->second);
    if (entry == configuration.end() && there.empty())
      throw FileError(std::string("[train] the checkpoint has no ") + name);
    if (given.count(name)) {
      if (may_change_on_resuming(name)) return;
      if (to_text(value) != there)
        throw ValueError(fmt::format("[train] the checkpoint is of another configuration: --{} is {} there, {} here",
                                     name, there, to_text(value)));
    }
    from_text(name, there, value);
  });
}

nn::LanguageModelConfig TrainOptions::model() const {
  return {.context = context,
          .layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = kv_heads ? kv_heads : heads,
          .dropout = dropout,
          .dtype = parse_dtype(dtype),
          .tile = tile};
}

std::optional<DType> TrainOptions::autocast_dtype() const {
  if (autocast == "none") return std::nullopt;
  if (autocast != "bf16" && autocast != "f16")
    throw ValueError("[train] --autocast must be none, bf16 or f16, but is " + autocast);
  if (dtype != "f32")
    throw ValueError(fmt::format(
        "[train] --autocast {} works between activations of f32, and with --dtype {} they are not", autocast, dtype));
  return parse_dtype(autocast);
}

std::optional<nn::LossScalerOptions> TrainOptions::loss_scaler() const {
  const bool has_f16 = autocast_dtype() == DType::f16 || dtype == "f16";
  if (loss_scale == "none" || (loss_scale == "auto" && !has_f16)) return std::nullopt;
  nn::LossScalerOptions options;
  if (loss_scale == "auto") return options;
  const char* const last = loss_scale.data() + loss_scale.size();
  const auto [end, error] = std::from_chars(loss_scale.data(), last, options.initial);
  if (error != std::errc() || end != last || !(options.initial >= 1 && options.initial <= 0x1p64))
    throw ValueError("[train] --loss-scale must be auto, none or a number from 1 to 2^64, but is " + loss_scale);
  if (!has_f16)
    throw ValueError(
        fmt::format("[train] --loss-scale {} serves f16 alone, and neither --dtype {} nor --autocast {} is", loss_scale,
                    dtype, autocast));
  return options;
}

attention::Pattern TrainOptions::pattern() const { return attention.pattern(context, "train"); }

std::unique_ptr<nn::LanguageModel> TrainOptions::make_model(Device on, Generator& generator) const {
  constexpr double rope_base = 10000.0;
  return std::make_unique<nn::LanguageModel>(model(), attention.mixer(context, "train", rope_base, 0.0),
                                             nn::ParameterOptions{.device = on, .generator = &generator});
}

TrainedModel load_trained_model(const std::string& path, Device device) {
  TrainedModel trained;
  trained.options.adopt(nn::read_training_metadata(path));
  trained.generator = std::make_unique<Generator>(trained.options.seed);
  trained.model = trained.options.make_model(device, *trained.generator);
  nn::load_trained_model(path, *trained.model);
  trained.model->eval();
  return trained;
}

std::unique_ptr<nn::Trainer> TrainOptions::make_trainer(nn::Corpus corpus, Device on, Generator& generator) const {
  auto network = make_model(on, generator);
  network->set_checkpointing(stages_of(checkpoint_policy()));
  return std::make_unique<nn::Trainer>(std::move(network), std::move(corpus),
                                       nn::TrainerOptions{.batch = batch,
                                                          .chunk = chunk,
                                                          .store_every = store_every,
                                                          .steps = steps,
                                                          .learning_rate = lr,
                                                          .seed = seed,
                                                          .generator = &generator,
                                                          .autocast = autocast_dtype(),
                                                          .loss_scale = loss_scaler(),
                                                          .optimizer = nn::parse_optimizer(optimizer),
                                                          .schedule = nn::Schedule::parse(schedule)});
}

void add_training_options(CLI::App& app, TrainOptions& o) {
  for_each_setting(o, setting_adder(app));
  app.add_option("--store-every", o.store_every, "Chunks between two that states are kept for; the rest is run again");
  app.add_option(
      "--checkpoint", o.checkpoint,
      "What is kept for backward, the rest being computed again: none (all is kept), selective (products and "
      "attention), "
      "block, sqrt, revolve or revolve:SLOTS (the inputs of some blocks), budget (what the budget has room for), or "
      "auto: budget where there is one; the numbers stay the same");
  app.add_option("--offload", o.offload, "Folder to move saved tensors to, rather than to compute them again");
  app.add_option("--sample", o.sample, "Bytes of text to write at the end");
}

int parse_train_options(int argc, const char* const* argv, TrainOptions& o) {
  CLI::App app("Trains a byte-level long-context language model on any text.");
  app.option_defaults()->always_capture_default();
  app.add_option("--text", o.text, "Files or folders to read (default: the C++ sources of Eigen)");
  add_training_options(app, o);
  app.add_option("--device", o.device,
                 "cpu, cuda:N, auto (a GPU where there is one), or sim:SIZE, a device of that capacity without "
                 "arithmetic; sim:SIZE,like=cpu reserves what the cpu does");
  app.add_option("--budget", o.budget, "Hard limit of the memory pool, such as 512MiB");
  app.add_option("--save", o.save, "Checkpoint to write at the end, and when stopped");
  app.add_option("--resume", o.resume,
                 "Checkpoint to go on from, bit for bit; --steps, --lr and --schedule may differ from its own");
  app.add_flag("--other-text", o.other_text, "Go on from a checkpoint that was trained on another text");
  app.add_option("--stop-after", o.stop_after, "Save and stop after this step (0: never)");
  app.add_option("--report", o.report, "Steps between lines");
  app.add_option("--json", o.json, "Report to write, as JSON");
  app.add_option("--csv", o.csv, "Steps to write, as CSV");
  auto* html = app.add_option("--html", o.html, "Page to write at the end: curves, memory, attention, all options");
  app.add_flag("--live", o.live, "Write the page at every line, too; it reloads itself")->needs(html);
  auto* profile =
      app.add_flag("--profile", o.profile, "Train a few steps and say what their kernels took; nothing else");
  app.add_option("--profile-trace", o.profile_trace, "Chrome trace of those steps to write: kernels and memory")
      ->needs(profile);
  app.add_flag("--quiet", o.quiet, "Print nothing but errors");
  const int code = parse_command_line(app, argc, argv);
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0) o.given.insert(option->get_single_name());
  return code;
}

std::string default_text() {
  for (const char* path : {POOLGRAD_DEFAULT_TEXT, "/usr/include/eigen3", "/usr/local/include/eigen3"})
    if (std::error_code error; std::filesystem::is_directory(path, error)) return path;
  throw FileError("[train] no Eigen headers to train on; give --text PATH or install libeigen3-dev");
}

namespace {

TrainOptions completed(TrainOptions options) {
  if (!options.resume.empty()) options.adopt(nn::read_training_metadata(options.resume));
  options.check();
  if (options.text.empty()) options.text = {default_text()};
  return options;
}

}  // namespace

PreparedRun::PreparedRun(TrainOptions told)
    : options(completed(std::move(told))),
      device(parse_device(options.device, "train")),
      pool(device, options.budget),
      memory(options.memory_policy(device)),
      generator(options.seed) {
  if (!device.is_sim()) options.device = to_string(device);
  trainer = options.make_trainer(nn::read_corpus(options.text, options.seed), device, generator);
  if (!options.resume.empty()) trainer->resume(options.resume, options.other_text);
}

nn::TrainResult train(TrainOptions told, std::ostream& out, bool live, const RunWatcher& watcher) {
  const PreparedRun run(std::move(told));
  const TrainOptions& options = run.options;
  nn::Trainer& trainer = *run.trainer;
  if (!options.quiet) out << describe_run(options, trainer) << std::endl;
  const nlohmann::ordered_json config = describe_configuration(options, trainer);
  std::function<void(nn::TrainResult&, bool)> reported;
  if (watcher) reported = [&](nn::TrainResult& result, bool finished) { watcher(config, trainer, result, finished); };
  nn::TrainResult result = nn::train(trainer, out,
                                     {.report = options.report,
                                      .stop_after = options.stop_after,
                                      .sample = options.sample,
                                      .save = options.save,
                                      .json = options.json,
                                      .csv = options.csv,
                                      .config = config.dump(),
                                      .quiet = options.quiet,
                                      .live = live,
                                      .metadata = options.configuration(),
                                      .memory = run.memory.get(),
                                      .trace_step = static_cast<bool>(watcher),
                                      .reported = reported});
  for (const auto& [what, path] : result.written)
    if (result.interrupted && what == "checkpoint" && !options.quiet)
      out << "go on    with --resume " << path << std::endl;
  return result;
}

}  // namespace poolgrad::examples
