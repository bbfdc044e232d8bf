#include "examples/support/train.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "examples/support/files.h"
#include "examples/support/train_settings.h"
#include "kernels/gemm.h"
#include "kernels/instruction_sets.h"
#include "nn/training/metrics.h"

namespace poolgrad::examples {

namespace {

/// Nanoseconds per byte to recompute: norms, activations and sums cost less, matrix products at common widths more.
constexpr double selective_price = 1.0;

/// Per step. The host stores a text position for each.
constexpr std::int64_t most_sequences = 1 << 20;

constexpr std::int64_t most_hidden = std::int64_t{1} << 40;

nn::FeedForwardKind feed_forward_of(const std::string& name) {
  constexpr std::pair<std::string_view, nn::FeedForwardKind> kinds[] = {{"gelu", nn::FeedForwardKind::gelu},
                                                                        {"gelu_exact", nn::FeedForwardKind::gelu_exact},
                                                                        {"swiglu", nn::FeedForwardKind::swiglu}};
  for (const auto& [known, kind] : kinds)
    if (name == known) return kind;
  throw ValueError("[train] --feed-forward must be gelu, gelu_exact or swiglu, but is " + printable(name));
}

/// The part of a policy that splits the model into checkpoints.
nn::Checkpointing stages_of(const std::string& policy) {
  if (policy == "selective" || policy == "budget") return {};
  try {
    return nn::Checkpointing::parse(policy);
  } catch (const ValueError&) {
    throw ValueError(
        "[train] --checkpoint must be none, selective, block, sqrt, revolve, revolve:SLOTS, budget or auto, "
        "but is " +
        printable(policy));
  }
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
  auto result = of_option("--offload", [&] {
    return std::make_unique<Rematerialisation>(
        RematerialisationOptions{.drop_below = policy == "selective" ? selective_price : 0.0,
                                 .offload_folder = offload,
                                 .offload_all = !chooses,
                                 .device = on});
  });
  if (policy == "budget") allocator_for(on).add_client(result->client());
  return result;
}

void TrainOptions::check() const {
  const auto refuse = [](const std::string& reason) { throw ValueError("[train] " + reason); };
  check_at_least_one("train", {{"context", context},
                               {"layers", layers.count()},
                               {"width", width},
                               {"heads", heads},
                               {"batch", batch},
                               {"accumulate", accumulate},
                               {"report", report},
                               {"store-every", store_every}});
  if (width % heads != 0) refuse(fmt::format("--width {} is not divisible by --heads {}", width, heads));
  if (width / heads % 2 != 0)
    refuse(fmt::format("--width {} / --heads {} must be even, because rotary positions rotate pairs", width, heads));
  if (kv_heads < 0 || (kv_heads > 0 && heads % kv_heads != 0))
    refuse(fmt::format("--heads {} is not a multiple of --kv-heads {}", heads, kv_heads));
  if (hidden < 0 || hidden > most_hidden) refuse(fmt::format("--hidden must be from 0 to 2^40, but is {}", hidden));
  if (!(norm_eps >= 0 && std::isfinite(norm_eps)))
    refuse(fmt::format("--norm-eps must be a number from 0 on, but is {}", norm_eps));
  if (logit_softcap != 0 && !(logit_softcap >= 1e-30 && logit_softcap <= 1e30))
    refuse(fmt::format("--logit-softcap must be 0 or from 1e-30 to 1e30, but is {}", logit_softcap));
  if (tile < 0) refuse(fmt::format("--tile must not be negative, but is {}", tile));
  if (batch > most_sequences) refuse(fmt::format("--batch must be at most {}, but is {}", most_sequences, batch));
  if (accumulate > most_sequences / batch)
    refuse(fmt::format("--accumulate must be at most {} with --batch {}, but is {}", most_sequences / batch, batch,
                       accumulate));
  if (!budget.empty() && of_option("--budget", [&] { return parse_bytes(budget); }) == 0)
    refuse("--budget 0 leaves no memory; without it there is no limit");
  if (chunk < 0) refuse(fmt::format("--chunk must not be negative, but is {}", chunk));
  if (chunk == 0 && store_every != 1) refuse("--store-every needs --chunk, whose states it keeps");
  if (steps < 0 || sample < 0 || stop_after < 0 || save_every < 0)
    refuse("--steps, --sample, --stop-after and --save-every must not be negative");
  if (save_every > 0 && save.empty()) refuse("--save-every needs --save");
  if (!(lr >= 0 && std::isfinite(lr))) refuse(fmt::format("--lr must be a number from 0 on, but is {}", lr));
  if (!(dropout >= 0 && dropout < 1)) refuse(fmt::format("--dropout must be in [0, 1), but is {}", dropout));
  if (!(ema >= 0 && ema < 1)) refuse(fmt::format("--ema must be in [0, 1), but is {}", ema));
  if (checkpoint == "budget" && budget.empty()) refuse("--checkpoint budget needs --budget");
  if (stages_of(checkpoint_policy()).kind != nn::Checkpointing::Kind::none && chunk > 0)
    refuse("--checkpoint " + printable(checkpoint) +
           " has no effect with --chunk, which recomputes every chunk anyway");
  for (const auto& [name, path] : {std::pair{"save", &save}, {"json", &json}, {"metrics", &metrics}, {"html", &html}})
    if (profile && !path->empty()) refuse(fmt::format("--profile is not a training run and cannot write --{}", name));
  if (graph && profile) refuse("--profile times each kernel of a step, but --graph launches a step as a whole");
  if (graph && checkpoint_policy() == "budget")
    refuse("--graph records one step, but --checkpoint budget recomputes differently in each step");
  if (graph && !offload.empty()) refuse("--offload reads from the device, which a step recorded by --graph cannot");
  of_option("--context-warmup", [&] { warmup().check(context); });
  if (graph && context_warmup != "none") refuse("--graph records one step, but --context-warmup changes its context");
  nn::parse_tokenizer(tokenizer);
  if (!is_floating(activations().dtype))
    refuse(fmt::format("--dtype must be f32, f64, bf16, f16 or auto, but is {}", dtype));
  model().check();
  const std::vector<LayerRun> runs = layer_runs();
  check_layers(runs, model(), "train");
  std::vector<std::int64_t> heads_of_layers;
  if (!html_heads.empty())
    for (const LayerRun& run : runs)
      heads_of_layers.insert(heads_of_layers.end(), static_cast<std::size_t>(run.count), run.heads(model()));
  parse_heads(html_heads, heads_of_layers);
  check_one_source(layers, given);
  std::vector<std::string> kinds = kinds_of(runs);
  if (graph && std::ranges::count(kinds, "nsa"))
    refuse("--graph records one step, but nsa selects other blocks in each step");
  if (parallel != "none") kinds.emplace_back("ring");  // with the layout of the ranks
  check_attention_options(given, kinds);
  loss_scaler();
  of_option("--optimizer", [&] { return nn::parse_optimizer(optimizer); });
  of_option("--schedule", [&] { return nn::Schedule::parse(schedule); });
  of_option("--metrics", [&] { nn::MetricsFile::check_name(metrics); });
  std::vector<InputFile> inputs = text_files(*this);
  inputs.push_back({"the checkpoint of --resume", resume, "--save"});
  inputs.push_back({"the checkpoint of --init", init});
  check_files("train",
              {{"--save", save},
               {"--json", json, true},
               {"--metrics", metrics},
               {"--html", html},
               {"--profile-trace", profile_trace}},
              inputs);
  if (shard_optimizer && parallel == "none")
    refuse("--shard-optimizer divides optimizer state among ranks: it needs --parallel");
  if (other_text && resume.empty()) refuse("--other-text needs --resume");
  if (!init.empty() && !resume.empty()) refuse("--init starts a new run and --resume continues one: give only one");
  if (device.starts_with("sim") && !(save.empty() && start().empty()))
    refuse("--device " + printable(device) + " has no bytes to save or resume");
}

std::vector<InputFile> text_files(const TrainOptions& options) {
  std::vector<InputFile> files;
  for (const std::string& text : options.text)
    files.push_back({"the text", of_option("--text", [&] { return nn::TextSource::parse(text); }).path});
  files.push_back({"the validation text", options.validate});
  return files;
}

std::vector<HeadName> parse_heads(const std::vector<std::string>& names, const std::vector<std::int64_t>& heads) {
  std::vector<HeadName> found;
  for (const std::string& name : names) {
    HeadName& head = found.emplace_back();
    const char* const last = name.data() + name.size();
    const auto block = std::from_chars(name.data(), last, head.block);
    const bool divided = block.ec == std::errc() && block.ptr != last && *block.ptr == ':';
    const auto end = divided ? std::from_chars(block.ptr + 1, last, head.head) : block;
    const bool there = heads.empty() || (head.block >= 0 && head.block < std::ssize(heads) && head.head >= 0 &&
                                         head.head < heads[static_cast<std::size_t>(head.block)]);
    if (!divided || end.ec != std::errc() || end.ptr != last || !there)
      throw ValueError(fmt::format(
          "[train] --html-head must be BLOCK:HEAD{}, but is {}",
          heads.empty() ? "" : fmt::format(" from 0:0 to {}:{}", heads.size() - 1, std::ranges::max(heads) - 1),
          printable(name)));
  }
  return found;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all{
      {"tiny", "to try something out", {{"context", "1024"}, {"width", "64"}, {"heads", "2"}, {"steps", "600"}}},
      {"small", "the default", {}},
      {"long", "a long context", {{"context", "32768"}, {"attention", "dilated"}, {"tile", "4096"}, {"steps", "100"}}}};
  return all;
}

nn::LanguageModelConfig TrainOptions::model() const {
  return {.vocabulary = nn::parse_tokenizer(tokenizer),
          .context = context,
          .layers = layers.count(),
          .width = width,
          .heads = heads,
          .kv_heads = kv_heads ? kv_heads : heads,
          .feed_forward = feed_forward_of(feed_forward),
          .hidden = hidden,
          .norm_epsilon = norm_eps,
          .tied_head = tied_head,
          .dropout = dropout,
          .dtype = activations().dtype,
          .tile = tile,
          .logit_softcap = logit_softcap};
}

DTypeChoice choose_dtype(bool on_cpu, std::string_view instruction_set, std::string_view gemm_backend) {
  if (!on_cpu) return {DType::bf16, "tensor cores multiply it"};
  if (instruction_set != "amx" && instruction_set != "avx512_bf16")
    return {DType::f32, fmt::format("{} has no fast products of bf16", instruction_set)};
  if (gemm_backend.find("oneDNN") == std::string_view::npos) return {DType::f32, "no oneDNN here to multiply bf16"};
  return {DType::bf16, fmt::format("{} multiplies it", instruction_set)};
}

DTypeChoice TrainOptions::activations() const {
  if (dtype != "auto") return {of_option("--dtype", [&] { return parse_dtype(printable(dtype)); })};
  if (autocast != "none") return {DType::f32, "autocast works between f32"};
  const bool on_cpu = device == "cpu" || device.ends_with("like=cpu");
  return choose_dtype(on_cpu, kernels::instruction_set(), kernels::gemm_backend());
}

double TrainOptions::learning_rate() const {
  return lr > 0 ? lr : nn::usual_learning_rate(nn::parse_optimizer(optimizer));
}

std::optional<DType> TrainOptions::autocast_dtype() const {
  if (autocast == "none") return std::nullopt;
  if (autocast != "bf16" && autocast != "f16")
    throw ValueError("[train] --autocast must be none, bf16 or f16, but is " + printable(autocast));
  if (dtype != "f32" && dtype != "auto")
    throw ValueError(fmt::format("[train] --autocast {} needs activations of f32, but --dtype is {}", autocast, dtype));
  return parse_dtype(autocast);
}

nn::ContextWarmup TrainOptions::warmup() const {
  return of_option("--context-warmup", [&] { return nn::ContextWarmup::parse(context_warmup); });
}

std::optional<nn::LossScalerOptions> TrainOptions::loss_scaler() const {
  const bool has_f16 = autocast_dtype() == DType::f16 || dtype == "f16";
  if (loss_scale == "none" || (loss_scale == "auto" && !has_f16)) return std::nullopt;
  nn::LossScalerOptions options;
  if (loss_scale == "auto") return options;
  const auto initial = number_in<double>(loss_scale);
  if (!initial || !(*initial >= 1 && *initial <= 0x1p64))
    throw ValueError("[train] --loss-scale must be auto, none or a number from 1 to 2^64, but is " +
                     printable(loss_scale));
  if (!has_f16)
    throw ValueError(fmt::format("[train] --loss-scale {} is only for f16, but --dtype is {} and --autocast is {}",
                                 loss_scale, dtype, autocast));
  options.initial = *initial;
  return options;
}

AttentionOptions TrainOptions::attention_in_force() const {
  AttentionOptions result = attention;
  result.seed = attention_seed.value_or(seed);
  return result;
}

std::unique_ptr<nn::LanguageModel> TrainOptions::make_model(Device on, Generator& generator) const {
  attention::RingSetup ring;
  if (ranks && ranks->grid().ring > 1)
    ring = {.layout = ranks->layout(), .communicator = ranks->ring(), .parts_are_told = true};
  return std::make_unique<nn::LanguageModel>(
      model(), attention::attention_mixer(specs_of(layer_runs(), context, "train", 0.0, ring)),
      nn::ParameterOptions{.device = on, .generator = &generator});
}

std::unique_ptr<nn::Trainer> TrainOptions::make_trainer(nn::Corpus learned, Device on, Generator& generator,
                                                        nn::StartingWeights* weights) const {
  auto network = make_model(on, generator);
  if (weights && !init.empty())
    *weights = of_option("--init", [&] { return nn::load_starting_weights(init, *network); });
  network->set_checkpointing(stages_of(checkpoint_policy()));
  return std::make_unique<nn::Trainer>(std::move(network), std::move(learned),
                                       nn::TrainerOptions{.batch = batch,
                                                          .accumulate = accumulate,
                                                          .chunk = chunk,
                                                          .store_every = store_every,
                                                          .steps = steps,
                                                          .learning_rate = learning_rate(),
                                                          .seed = seed,
                                                          .generator = &generator,
                                                          .autocast = autocast_dtype(),
                                                          .loss_scale = loss_scaler(),
                                                          .optimizer = nn::parse_optimizer(optimizer),
                                                          .schedule = nn::Schedule::parse(schedule),
                                                          .warmup = warmup(),
                                                          .ema = ema,
                                                          .ranks = ranks.get(),
                                                          .shard_optimizer = shard_optimizer,
                                                          .graph = graph});
}

/// Options take their values in the order in which they are added: add --preset first, so that all others override it.
void add_presets(CLI::App& app, TrainOptions& o) {
  std::string help = "Settings by name:";
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    names.push_back(preset.name);
    help += fmt::format("{} {}, {}", names.size() > 1 ? ";" : "", preset.name, preset.purpose);
    for (const auto& [name, value] : preset.settings)
      help += fmt::format("{}{} {}", name == preset.settings.front().first ? ": " : ", ", name, value);
  }
  const auto take = [&o](const std::string& name) {
    const auto named = [&](const Preset& preset) { return preset.name == name; };
    const auto set = setting_parser(o);
    for (const auto& [setting, value] : std::ranges::find_if(presets(), named)->settings) set(setting, value);
  };
  const CLI::Validator elsewhere(
      [](const std::string& name) {
        return name == "needle" ? "needle is a separate task: ./run recall --preset needle" : std::string();
      },
      "");
  app.add_option_function<std::string>("--preset", take, help)->check(elsewhere)->check(CLI::IsMember(names));
}

void add_training_options(CLI::App& app, TrainOptions& o) {
  add_presets(app, o);
  for_each_setting(o, setting_adder(app));
  for_each_shared_setting(o, setting_adder(app));
}

std::function<void(const std::string& name, const std::string& value)> setting_parser(TrainOptions& options) {
  const auto app = std::make_shared<CLI::App>();
  for_each_setting(options, setting_adder(*app));
  return [app](const std::string& name, const std::string& value) {
    const std::string word = fmt::format("--{}={}", name, value);
    const char* const words[] = {"", word.c_str()};
    try {
      read_command_line(*app, 2, words);
    } catch (const CLI::ParseError& error) {
      throw ValueError(fmt::format("[--{}] {}", name, error.what()));
    }
  };
}

int parse_train_options(int argc, const char* const* argv, TrainOptions& o) {
  o.dtype = "auto";
  CLI::App app("Trains a long-context language model on any text.", "./run train");
  app.option_defaults()->always_capture_default();
  app.add_option("--text", o.text,
                 "Files or folders to read; PATH=WEIGHT draws windows from several texts by weight (default: the C++ "
                 "sources of Eigen)");
  add_training_options(app, o);
  for_each_run_setting(o, setting_adder(app));
  for (const char* const start : {"--resume", "--init"}) app.get_option(start)->excludes("--preset");
  app.get_option("--init")->excludes("--resume");
  app.get_option("--live")->needs("--html");
  app.get_option("--html-head")->needs("--html")->delimiter(',');
  app.get_option("--profile-trace")->needs("--profile");
  const int code = parse_command_line(app, argc, argv);
  o.given = options_given(app);
  return code;
}

}  // namespace poolgrad::examples
