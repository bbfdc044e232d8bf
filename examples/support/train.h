// examples/train, callable more than once in a process: what it can be told, what a checkpoint remembers of it, the
// run.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/support/files.h"
#include "examples/support/layers.h"
#include "examples/support/options.h"
#include "nn/training/trainer.h"
#include "parallel/training_ranks.h"

namespace poolgrad::examples {

/// A dtype of activations, and why it was taken.
struct DTypeChoice {
  DType dtype = DType::f32;
  std::string reason = {};
};
/// bf16 where it pays, which is on GPUs, and on CPUs whose instruction set multiplies it (amx, or avx512_bf16 where
/// that is in use), through oneDNN; else f32. `instruction_set` and `gemm_backend` as in kernels/.
DTypeChoice choose_dtype(bool on_cpu, std::string_view instruction_set, std::string_view gemm_backend);

/// A name for a few settings.
struct Preset {
  std::string name, purpose;
  std::vector<std::pair<std::string, std::string>> settings;  // as on a command line
};
/// "tiny", "small" (the defaults), "long".
const std::vector<Preset>& presets();

struct TrainOptions {
  std::vector<std::string> text;    // of nn::TextSource::parse(); empty: default_text()
  std::string tokenizer = "bytes";  // or bpe:N
  std::int64_t context = 4096;      // tokens
  LayerList layers = 2;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 0;                         // 0: as many as heads
  AttentionOptions attention;                        // of layers that are a number; its seed: see attention_in_force()
  std::optional<std::uint64_t> attention_seed = {};  // of random blocks; none: `seed`. Older checkpoints have 0
  std::int64_t batch = 1;
  std::int64_t chunk = 0;  // positions that go through the model at once; 0: all
  std::int64_t store_every = 1;
  std::int64_t steps = 1250;
  double lr = 0;  // at its peak; 0: what suits the optimiser, see learning_rate()
  std::string optimizer = "muon";
  std::string schedule = "cosine";
  double ema = 0;  // decay of the average of the weights that is judged, sampled and used; 0: none
  double dropout = 0.0;
  std::int64_t tile = 0;  // positions that feed-forward layers take at a time; 0: all
  std::uint64_t seed = 1;
  std::string dtype = "f32";        // or auto, which programs say unless told otherwise: see choose_dtype()
  std::string autocast = "none";    // or the half type of products and attention, between f32 activations
  std::string loss_scale = "auto";  // or none, or the scale to begin with; auto: 65536 where anything is f16
  std::string device = "cpu";
  std::string budget;  // hard limit of the pool, "512MiB"; empty: none
  /// What is kept for backward: nn::Checkpointing, "selective", "budget", or "auto": budget where there is one, else
  /// none. No part of the configuration, as it changes no number.
  std::string checkpoint = "auto";
  std::string offload;  // a folder for what is not kept; empty: none
  std::string save, resume;
  bool save_unasked = true;     // when stopped, without a name
  std::int64_t save_every = 0;  // steps between checkpoints; 0: at the end alone
  bool other_text = false;      // resume accepts another text than the checkpoint's
  std::int64_t stop_after = 0;  // 0: never
  std::int64_t report = 50;     // steps between lines
  std::int64_t sample = 300;    // tokens of text to write at the end
  std::string json, csv, html, profile_trace;
  std::vector<std::string> html_heads;  // of parse_heads(): large maps on the page
  bool profile = false;                 // a few steps by kernel, and no run
  bool live = false;                    // the page is written at each line, too, and reloads itself
  bool quiet = false;
  bool graph = false;  // steps are recorded once and replayed; no part of the configuration, as it changes no number
  std::string parallel = "none";  // or what the ranks that mpirun has started share: parallel::Grid
  bool shard_optimizer = false;   // optimiser states divided among them
  /// This process among them, made by the program; null: none. No part of the configuration, as any number of ranks
  /// goes on with a checkpoint.
  std::shared_ptr<parallel::TrainingRanks> ranks = {};
  /// What read_text() gave, for runs that share it; null: it is read.
  std::shared_ptr<const nn::Corpus> corpus = {};

  /// Options that were given, by name; resume takes the others from the checkpoint.
  std::set<std::string> given;

  /// Throws ValueError, one sentence that names the option, for options that no run can be made of.
  void check() const;
  /// What decides the numbers of a run, by name. A checkpoint keeps it.
  std::map<std::string, std::string> configuration() const;
  /// The options of a command line that make this configuration: "--context=64", ...
  std::vector<std::string> arguments() const;
  /// Takes over the configuration of a checkpoint, but for a given --steps, --lr or --schedule: a run may go on for
  /// longer and at other rates. Throws ValueError for any other given option that differs, and FileError where the
  /// checkpoint has none.
  void adopt(const std::map<std::string, std::string>& configuration);

  /// Throws FileError, one sentence, where a checkpoint has other tensors than the model of this configuration. Takes
  /// no memory for the model.
  void check_tensors(const std::string& checkpoint) const;

  /// Takes over the settings of a preset.
  void use(const Preset& preset);
  /// `checkpoint`, with "auto" resolved.
  std::string checkpoint_policy() const;
  /// What decides about saved tensors while it lives, of the thread that calls this; nullptr where nothing does. The
  /// pool of `device` asks it for memory. Throws FileError for the offload folder.
  std::unique_ptr<Rematerialisation> memory_policy(Device device) const;
  double learning_rate() const;
  nn::LanguageModelConfig model() const;
  /// `attention` with the seed of its blocks.
  AttentionOptions attention_in_force() const;
  std::vector<LayerRun> layer_runs() const { return layers.runs(attention_in_force()); }
  std::string describe_attention() const { return describe_layers(layer_runs(), context); }
  /// Throw ValueError, one sentence, for what is no dtype or scale, or goes with no other option.
  std::optional<DType> autocast_dtype() const;
  std::optional<nn::LossScalerOptions> loss_scaler() const;
  /// What `dtype` stands for, and, where it is auto, why.
  DTypeChoice activations() const;
  /// The model with its initial weights. The generator must outlive it.
  std::unique_ptr<nn::LanguageModel> make_model(Device device, Generator& generator) const;
  /// The model on its text, at step 0. The generator must outlive the trainer.
  std::unique_ptr<nn::Trainer> make_trainer(nn::Corpus learned, Device device, Generator& generator) const;
};

/// A run as it is before its first step: text, memory and model, in the order in which they go away again.
struct PreparedRun {
  /// Throws what train() does. `progress` is told of what takes long.
  explicit PreparedRun(TrainOptions options, const nn::CorpusProgress& progress = {});

  TrainOptions options;  // complete: a checkpoint's configuration, the device by name, the text
  Device device;
  PoolGuard pool;
  std::unique_ptr<Rematerialisation> memory;
  Generator generator;
  std::unique_ptr<nn::Trainer> trainer;
  std::string dtype_reason;  // why the dtype was chosen; empty: it was told
};

/// What a checkpoint of train() was trained as, and the model: its weights, or their averages where it was trained
/// with --ema, in eval() mode.
struct TrainedModel {
  TrainOptions options;
  std::shared_ptr<const nn::Tokenizer> tokenizer;
  std::unique_ptr<Generator> generator;  // of the model
  std::unique_ptr<nn::LanguageModel> model;
};
/// Throws FileError for a file that is no such checkpoint.
TrainedModel load_trained_model(const std::string& path, Device device);

/// A head of a model, counted from 0.
struct HeadName {
  std::int64_t block = 0, head = 0;
};
/// Those that "BLOCK:HEAD" name. Throws ValueError, one sentence, for a head beyond `heads`, the number of heads of
/// each layer. Without `heads` only the form is checked.
std::vector<HeadName> parse_heads(const std::vector<std::string>& names, const std::vector<std::int64_t>& heads = {});

/// Adds the options that decide the numbers or the memory of a run to a command line: those that a plan shares.
void add_training_options(CLI::App& app, TrainOptions& options);

/// Reads the command line. Returns the exit code if the program is to end at once (--help, a fault), else -1.
int parse_train_options(int argc, const char* const* argv, TrainOptions& options);

/// The folder of Eigen's headers, which the build needs anyway. Throws FileError where there is none.
std::string default_text();

/// What a run of these options learns from: read, and in tokens, of a tokenizer that is learned or, of a run that goes
/// on, the checkpoint's. Throws FileError.
nn::Corpus read_text(const TrainOptions& options, const nn::CorpusProgress& progress = {});

/// The texts of --text: what no program that reads them writes to.
std::vector<InputFile> text_files(const TrainOptions& options);

/// "bytes" or "tokens": what a model of this --tokenizer reads and writes.
const char* unit_of(std::string_view tokenizer);

/// Is shown a run after each line that is printed and at its end; `config` is that of the report.
using RunWatcher =
    std::function<void(const nlohmann::ordered_json& config, nn::Trainer&, nn::TrainResult&, bool finished)>;

/// Trains as told, printing to `out` (with a live line where `live`); the report files are written too. Throws the
/// errors of poolgrad: ValueError and FileError for options, DeviceError, OutOfMemoryError where the budget does not
/// suffice. The pool is as before afterwards.
/// `watcher` writes the page; a step is traced for it.
nn::TrainResult train(TrainOptions options, std::ostream& out, bool live = false, const RunWatcher& watcher = {});
/// The same, with what was found out in `result`, which is to be new, also where it throws.
void train(TrainOptions options, std::ostream& out, nn::TrainResult& result, bool live = false,
           const RunWatcher& watcher = {});

}  // namespace poolgrad::examples
