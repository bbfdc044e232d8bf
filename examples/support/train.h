// examples/train, reentrant within a process: options, configuration in checkpoints, and the run.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
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

/// A dtype of activations, and the reason for it.
struct DTypeChoice {
  DType dtype = DType::f32;
  std::string reason = {};
};
/// bf16 where it is faster: on GPUs, and through oneDNN on CPUs with bf16 products (amx, or avx512_bf16 if in use).
/// Else f32. `instruction_set` and `gemm_backend` as in kernels/.
DTypeChoice choose_dtype(bool on_cpu, std::string_view instruction_set, std::string_view gemm_backend);

/// A name for several settings.
struct Preset {
  std::string name, purpose;
  std::vector<std::pair<std::string, std::string>> settings;  // as on a command line
};
/// "tiny", "small" (the defaults), "long".
const std::vector<Preset>& presets();

/// The options of a command line. Programs set `live`, `reported` and `trace_step` of nn::RunOptions; train() sets
/// `config`, `metadata` and `memory`.
struct TrainOptions : nn::RunOptions {
  std::vector<std::string> text;        // of nn::TextSource::parse(); empty: default_text()
  std::string validate;                 // file or folder of the validation text; empty: a part of `text`
  std::string tokenizer = "bytes";      // or bpe:N
  std::int64_t context = 4096;          // tokens
  std::string context_warmup = "none";  // of nn::ContextWarmup::parse()
  LayerList layers = 2;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 0;                         // 0: as many as heads
  std::string feed_forward = "gelu";                 // or gelu_exact, swiglu
  std::int64_t hidden = 0;                           // units of feed-forward layers; 0: by the width
  double norm_eps = 0;                               // 0: 1e-6
  bool tied_head = false;                            // the output weight is the embedding
  double logit_softcap = 0;                          // nn::LanguageModelConfig::logit_softcap
  AttentionOptions attention;                        // for a number of layers; its seed: see attention_in_force()
  std::optional<std::uint64_t> attention_seed = {};  // of random blocks; none: `seed`. 0 in older checkpoints
  std::int64_t batch = 1;
  std::int64_t accumulate = 1;  // batches of a step
  std::int64_t chunk = 0;       // positions per pass through the model; 0: all
  std::int64_t store_every = 1;
  std::int64_t steps = 1250;
  double lr = 0;  // peak; 0: the optimizer's default, see learning_rate()
  std::string optimizer = "muon";
  std::string schedule = "cosine";
  double ema = 0;  // decay of the weight average used to validate and sample; 0: none
  double dropout = 0.0;
  std::int64_t tile = 0;  // positions per call of feed-forward layers; 0: all
  std::uint64_t seed = 1;
  std::string dtype = "f32";        // or auto, the default of programs: see choose_dtype()
  std::string autocast = "none";    // or the half type of products and attention between f32 activations
  std::string loss_scale = "auto";  // or none, or the initial scale; auto: 65536 if anything is f16
  std::string device = "cpu";
  std::string budget;  // hard limit of the pool, "512MiB"; empty: none
  /// Saved tensors: nn::Checkpointing, "selective", "budget", or "auto": budget if there is one, else none. Not in the
  /// configuration, as it does not change results.
  std::string checkpoint = "auto";
  std::string offload;  // folder of offloaded tensors; empty: none
  std::string resume;
  std::string init;         // checkpoint whose weights the run starts from
  bool other_text = false;  // resume accepts a text that differs from the checkpoint's
  std::string html, profile_trace;
  std::vector<std::string> html_heads;  // of parse_heads(): large maps on the page
  bool profile = false;                 // profile a few steps by kernel instead of a run
  bool live_page = false;               // rewrite the page at each printed line, with automatic reload
  bool graph = false;  // record steps once and replay them; not in the configuration, as it does not change results
  std::string parallel = "none";  // or the split over mpirun's ranks: parallel::Grid
  bool shard_optimizer = false;   // split optimizer state over the ranks
  /// The ranks, created by the program; null: none. Not in the configuration, as any number of ranks can resume a
  /// checkpoint.
  std::shared_ptr<parallel::TrainingRanks> ranks = {};
  /// A result of read_text() to share between runs; null: read the text.
  std::shared_ptr<const nn::Corpus> corpus = {};

  /// Names of the given options; resume takes the others from the checkpoint.
  std::set<std::string> given;

  /// Throws ValueError, one sentence with the option's name, for invalid options.
  void check() const;
  /// The settings that determine a run's results, by name. Stored in checkpoints.
  std::map<std::string, std::string> configuration() const;
  /// Command line options for this configuration: "--context=64", ...
  std::vector<std::string> arguments() const;
  /// Adopts the configuration of a checkpoint, except given --steps, --lr or --schedule: a run may continue for longer
  /// and at other rates. With `init`, adopts only the settings of the model that are not given. Throws ValueError for
  /// any other given option that differs (with `init`: tokenizer, width and heads), and FileError if the checkpoint has
  /// no configuration.
  void adopt(const std::map<std::string, std::string>& configuration);

  /// Throws FileError, one sentence, if a checkpoint's tensors do not match the model of this configuration. Allocates
  /// no memory for the model.
  void check_tensors(const std::string& checkpoint) const;

  /// The file of `resume` or `init`; empty: none.
  const std::string& start() const { return resume.empty() ? init : resume; }

  /// `checkpoint` with "auto" resolved.
  std::string checkpoint_policy() const;
  /// A thread-local policy for saved tensors, active during its lifetime; nullptr if none is needed. A client of the
  /// pool of `device`. Throws FileError for the offload folder.
  std::unique_ptr<Rematerialisation> memory_policy(Device device) const;
  double learning_rate() const;
  nn::LanguageModelConfig model() const;
  /// `attention` with the seed of its blocks.
  AttentionOptions attention_in_force() const;
  std::vector<LayerRun> layer_runs() const { return layers.runs(attention_in_force()); }
  std::string describe_attention() const { return describe_layers(layer_runs(), context); }
  /// All throw ValueError, one sentence, for an invalid dtype or scale, and for an invalid combination of options.
  std::optional<DType> autocast_dtype() const;
  std::optional<nn::LossScalerOptions> loss_scaler() const;
  nn::ContextWarmup warmup() const;
  /// The dtype of activations, and the reason if it is auto.
  DTypeChoice activations() const;
  /// The model with its initial weights. The generator must outlive it.
  std::unique_ptr<nn::LanguageModel> make_model(Device device, Generator& generator) const;
  /// The model on its text, at step 0, with the weights of `init` if `weights` is to tell of them. The generator must
  /// outlive the trainer.
  std::unique_ptr<nn::Trainer> make_trainer(nn::Corpus learned, Device device, Generator& generator,
                                            nn::StartingWeights* weights = nullptr) const;
};

/// The options of a checkpoint, or of a model in a folder in Hugging Face's format, after check_tensors(). Throws
/// FileError.
TrainOptions options_of(const std::string& path);

/// A run before its first step: text, memory and model. Members are in order of construction.
struct PreparedRun {
  /// Throws as train() does. Reports long work to `progress`.
  explicit PreparedRun(TrainOptions options, const nn::CorpusProgress& progress = {});

  TrainOptions options;  // completed: a checkpoint's configuration, the device by name, the text
  Device device;
  PoolGuard pool;
  std::unique_ptr<Rematerialisation> memory;
  Generator generator;
  std::unique_ptr<nn::Trainer> trainer;
  std::string dtype_reason;          // reason for the dtype; empty: it was given
  nn::StartingWeights weights = {};  // of `options.init`
};

/// A checkpoint's training configuration, and the model in eval() mode: its weights, or their averages with --ema.
struct TrainedModel {
  TrainOptions options;
  std::shared_ptr<const nn::Tokenizer> tokenizer;
  std::unique_ptr<Generator> generator;  // of the model
  std::unique_ptr<nn::LanguageModel> model;
};
/// `path`: a checkpoint, or a folder in Hugging Face's format. Throws FileError for an invalid one.
TrainedModel load_trained_model(const std::string& path, Device device);

/// A head of a model, counted from 0.
struct HeadName {
  std::int64_t block = 0, head = 0;
};
/// Parses names "BLOCK:HEAD". Throws ValueError, one sentence, for a head beyond `heads`, the number of heads of each
/// layer. Without `heads` checks only the form.
std::vector<HeadName> parse_heads(const std::vector<std::string>& names, const std::vector<std::int64_t>& heads = {});

/// Adds the options that determine results or memory, which plans share, to a command line.
void add_training_options(CLI::App& app, TrainOptions& options);

/// Reads the command line. Returns the exit code if the program must end at once (--help, an error), else -1.
int parse_train_options(int argc, const char* const* argv, TrainOptions& options);

/// The folder of Eigen's headers, which the build needs anyway. Throws FileError if there is none.
std::string default_text();

/// Reads and tokenizes the training text. Learns the tokenizer, or takes that of the checkpoint when resuming. Throws
/// FileError.
nn::Corpus read_text(const TrainOptions& options, const nn::CorpusProgress& progress = {});

/// The texts of --text and --validate, which no program that reads them may overwrite.
std::vector<InputFile> text_files(const TrainOptions& options);

/// The unit of a model with this --tokenizer: "bytes" or "tokens".
const char* unit_of(std::string_view tokenizer);

/// Trains with `options`, prints to `out` and writes the report files. Throws the errors of poolgrad: ValueError and
/// FileError for options, DeviceError, OutOfMemoryError if the budget is too small. Restores the pool's state.
nn::TrainResult train(TrainOptions options, std::ostream& out);

}  // namespace poolgrad::examples
