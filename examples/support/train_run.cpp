// The run of examples/train: completes the options, prints reports, and runs the steps.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "examples/support/console.h"
#include "examples/support/train_settings.h"
#include "kernels/parallel.h"
#include "nn/training/progress.h"

namespace poolgrad::examples {

std::string default_text() {
  for (const char* path : {POOLGRAD_DEFAULT_TEXT, "/usr/include/eigen3", "/usr/local/include/eigen3"})
    if (std::error_code error; std::filesystem::is_directory(path, error)) return path;
  throw FileError("[train] no Eigen headers to train on; give --text PATH or install libeigen3-dev");
}

namespace {

/// A line for each weighted text, and one about tokens; none for a single text of bytes.
std::string describe_corpus(const TrainOptions& o, const nn::Corpus& corpus) {
  std::string lines;
  std::int64_t tokens = 0;
  for (const nn::CorpusText& text : corpus.texts) {
    tokens += text.train_tokens.size();
    if (corpus.weighted)
      lines +=
          fmt::format("         {:.1f} % of the windows from {}: {} to train on{}\n",
                      100 * text.weight / corpus.total_weight(), text.path, format_bytes(text.train_bytes()),
                      corpus.own_validation ? "" : fmt::format(", {} held out", format_bytes(text.validation_bytes())));
  }
  if (corpus.of_bytes()) return lines;
  const std::int64_t known = corpus.tokenizer->size();
  return lines + fmt::format("tokens   {} of {}{}: {} to train on, {:.2f} bytes each\n", known, o.tokenizer,
                             known < nn::parse_tokenizer(o.tokenizer) ? " (no other pair comes twice)" : "",
                             nn::format_count(static_cast<double>(tokens)),
                             static_cast<double>(corpus.train_bytes()) / static_cast<double>(tokens));
}

/// Text, model and device, before the first step.
std::string describe_run(const PreparedRun& run) {
  const TrainOptions& o = run.options;
  nn::Trainer& trainer = *run.trainer;
  const nn::Corpus& corpus = trainer.corpus();
  std::string paths;
  for (const std::string& path : o.text) paths += " " + path;
  if (corpus.own_validation) paths += ", validated on " + o.validate;
  return fmt::format(
      "text     {}, {} to train on, {} held out:{}\n"
      "{}"
      "model    {} parameters: {}, width {}, {} ({} for keys), context {}, {}\n"
      "device   {}, {}{}{}{}, {}, by {}{}{}{}{}{}{}{}{}{}{}{}",
      plural(corpus.files, "file"), format_bytes(corpus.train_bytes()), format_bytes(corpus.validation_bytes()), paths,
      describe_corpus(o, corpus), nn::format_count(static_cast<double>(trainer.model().parameter_count())),
      plural(o.layers.count(), "layer"), o.width, plural(o.heads, "head"), o.model().kv_heads, o.context,
      o.describe_attention(), o.device, o.dtype,
      run.dtype_reason.empty() ? "" : fmt::format(" (auto: {})", run.dtype_reason),
      o.autocast == "none" ? "" : " with products in " + o.autocast,
      o.loss_scaler() ? fmt::format(", loss scaled by {} at first", o.loss_scaler()->initial) : "",
      engines_of(trainer.device()).to_string(), o.optimizer,
      o.schedule == "cosine" ? "" : fmt::format(", rate {}", o.schedule),
      o.context_warmup == "none" ? "" : ", contexts " + o.context_warmup,
      o.ema > 0 ? fmt::format(", validated with averages of decay {}", o.ema) : "",
      o.accumulate > 1 ? fmt::format(", {} batches a step", o.accumulate) : "",
      o.chunk ? fmt::format(", in chunks of {}", o.chunk) : "", o.budget.empty() ? "" : ", budget " + o.budget,
      o.checkpoint_policy() == "none" ? "" : ", checkpoints by " + o.checkpoint_policy(),
      o.offload.empty() ? "" : ", offload to " + o.offload,
      o.tile ? fmt::format(", feed-forward in tiles of {}", o.tile) : "", o.graph ? ", steps recorded" : "",
      o.ranks ? fmt::format("\nranks    {}: {}{}", o.ranks->size(), to_string(o.ranks->grid()),
                            o.shard_optimizer ? ", optimizer state divided" : "")
              : "");
}

/// The tensors that a checkpoint gave the model, and the first ones that it lacks.
std::string describe_start(const PreparedRun& run) {
  constexpr std::size_t most_shown = 4;
  const auto& [taken, left] = run.weights;
  std::string text = fmt::format("start    {} from {}", plural(taken, "tensor"), printable_path(run.options.init));
  for (std::size_t i = 0; i < std::min(left.size(), most_shown); ++i)
    text += fmt::format("\n         not {}: {} there, {} here", printable(left[i].name),
                        left[i].there.empty() ? "none" : left[i].there, left[i].here.empty() ? "none" : left[i].here);
  return text + (left.size() > most_shown ? fmt::format("\n         nor {} others", left.size() - most_shown) : "");
}

/// "config" of the report: every option with its effective value, and detected properties.
nlohmann::ordered_json describe_configuration(const TrainOptions& o, nn::Trainer& trainer) {
  nlohmann::ordered_json config;
  config["text"] = o.text;
  const auto take = [&](std::string name, const auto& value, const auto&) {
    std::ranges::replace(name, '-', '_');
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, LayerList>)
      config[name] = value.is_number() ? nlohmann::ordered_json(value.count()) : nlohmann::ordered_json(value.text());
    else
      config[name] = value;
  };
  for_each_setting(o, take);
  for_each_shared_setting(o, take);
  for_each_run_setting(o, take);
  config["kv_heads"] = o.model().kv_heads;
  config["segments"] = o.attention.segments_for(o.context);
  config["rates"] = o.attention.rates_for(o.context);
  config["loss_scale"] = o.loss_scaler() ? nlohmann::ordered_json(o.loss_scaler()->initial) : nullptr;
  config["checkpoint"] = o.checkpoint_policy();
  config["parallel"] = o.ranks ? to_string(o.ranks->grid()) : "none";
  const Engines engines = engines_of(trainer.device());
  const nlohmann::ordered_json found{{"layer_count", o.layers.count()},
                                     {"pattern", o.describe_attention()},
                                     {"files", trainer.corpus().files},
                                     {"train_bytes", trainer.corpus().train_bytes()},
                                     {"validation_bytes", trainer.corpus().validation_bytes()},
                                     {"vocabulary", trainer.corpus().tokenizer->size()},
                                     {"ranks", o.ranks ? o.ranks->size() : 1},
                                     {"parameters", trainer.model().parameter_count()},
                                     {"threads", kernels::num_threads()},
                                     {"machine", engines.machine},
                                     {"gemm", engines.products},
                                     {"instruction_set", engines.attention}};
  config.update(found);
  return config;
}

/// Throws ValueError for a given list of layers with another base of rotary positions than the model of `there`.
void check_positions(const TrainOptions& options, const TrainOptions& there) {
  const double base = there.layer_runs().front().attention.rope->base;
  for (const LayerRun& run : options.layer_runs())
    if (const auto& rope = run.attention.rope; rope && rope->base != base)
      throw ValueError(
          fmt::format("[--layers] the rotary positions of --init have base {}, but those of a layer have base {}: give "
                      "rope:BASE or "
                      "nope in each entry",
                      base, rope->base));
}

TrainOptions completed(TrainOptions options) {
  if (!options.resume.empty())
    options.adopt(of_option("--resume", [&] { return nn::read_training_metadata(options.resume); }));
  if (!options.init.empty()) {
    const TrainOptions there = of_option("--init", [&] { return options_of(options.init); });
    options.adopt(there.configuration());
    if (nn::is_pretrained_folder(options.init)) check_positions(options, there);
  }
  if (options.resume.empty() && options.ranks && !options.given.count("batch"))  // one sequence per rank
    options.batch = std::max<std::int64_t>(options.batch, options.ranks->grid().data);
  options.check();
  if (!options.resume.empty())  // before reading the text and making the model
    of_option("--resume", [&] { options.check_tensors(options.resume); });
  if (options.text.empty()) options.text = {default_text()};
  return options;
}

}  // namespace

const char* unit_of(std::string_view tokenizer) { return tokenizer == "bytes" ? "bytes" : "tokens"; }

nn::Corpus read_text(const TrainOptions& options, const nn::CorpusProgress& progress) {
  if (options.corpus) return *options.corpus;
  nn::Corpus corpus = of_option(options.validate.empty() ? "--text" : "--text, --validate", [&] {
    return nn::read_corpus(options.text.empty() ? std::vector{default_text()} : options.text, options.seed,
                           options.validate);
  });
  if (options.tokenizer == "bytes") return corpus;
  std::shared_ptr<const nn::Tokenizer> tokenizer =
      options.start().empty() ? nn::learn_tokenizer(corpus, nn::parse_tokenizer(options.tokenizer), progress)
                              : std::make_shared<const nn::Tokenizer>(nn::load_tokenizer(options.start()));
  nn::tokenize(corpus, std::move(tokenizer), progress);
  return corpus;
}

PreparedRun::PreparedRun(TrainOptions told, const nn::CorpusProgress& progress)
    : options(completed(std::move(told))),
      device(parse_device(options.device, "train")),
      pool(device, options.budget),
      memory(options.memory_policy(device)),
      generator(options.seed) {
  if (!device.is_sim()) options.device = to_string(device);
  options.lr = options.learning_rate();
  const DTypeChoice activations = options.activations();
  options.dtype = to_string(activations.dtype);
  dtype_reason = activations.reason;
  if (options.ranks) options.ranks->agree({{"the dtype that --dtype auto means there", options.dtype}});
  trainer = options.make_trainer(read_text(options, progress), device, generator, &weights);
  if (!options.resume.empty()) trainer->resume(options.resume, options.other_text);
}

nn::TrainResult train(TrainOptions told, std::ostream& out) {
  told.quiet |= told.json == "-";
  if (!told.ranks || told.ranks->rank() == 0) nn::check_replaceable(told.html, "train");
  std::optional<nn::Progress> preparing(std::in_place, out, told.live && !told.quiet);
  const PreparedRun run(std::move(told),
                        [&](const std::string& what, double done) { preparing->status(nn::bar(done) + " " + what); });
  preparing.reset();
  const TrainOptions& options = run.options;
  nn::Trainer& trainer = *run.trainer;
  if (!options.quiet) out << describe_run(run) << std::endl;
  if (!options.quiet && !options.init.empty()) out << describe_start(run) << std::endl;
  nn::RunOptions of_run = options;
  of_run.config = json_text(describe_configuration(options, trainer), -1);
  of_run.metadata = options.configuration();
  of_run.memory = run.memory.get();
  nn::TrainResult result = nn::train(trainer, out, std::move(of_run));
  std::string text = options.given.count("text") ? fmt::format("--text {} ", fmt::join(options.text, " ")) : "";
  if (!options.validate.empty()) text += "--validate " + options.validate + " ";
  for (const auto& [what, path] : result.written)
    if (result.interrupted && what == "checkpoint" && !options.quiet)
      out << "continue with " << text << "--resume " << path << std::endl;
  return result;
}

}  // namespace poolgrad::examples
