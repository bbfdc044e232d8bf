#include "nn/training/trainer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "allocator/base/atomic_file.h"
#include "allocator/base/count.h"
#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/views.h"
#include "nn/chunked.h"
#include "nn/training/sampler.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

namespace {

constexpr std::int64_t warmup_steps = 20;

std::unique_ptr<Optimizer> optimizer_for(NamedTensors parameters, const TrainerOptions& o) {
  constexpr double momentum = 0.9;
  const AdamWOptions adamw{
      .learning_rate = o.learning_rate, .beta2 = 0.95, .weight_decay = o.weight_decay, .decay_matrices_only = true};
  const auto is_vector = [](const std::string&, const Tensor& parameter) { return parameter.dim() < 2; };
  const auto is_table = [](const std::string& name, const Tensor&) {
    return name.ends_with("embedding.weight") || name == "positions.weight" || name == "head.weight";
  };
  switch (o.optimizer) {
    case OptimizerKind::adamw: break;
    case OptimizerKind::sgd:
      return std::make_unique<SGD>(std::move(parameters),
                                   SGDOptions{.learning_rate = o.learning_rate,
                                              .momentum = momentum,
                                              .weight_decay = o.weight_decay * (1 - momentum),
                                              .nesterov = true,
                                              .groups = {{.applies = is_vector, .weight_decay = 0.0}}});
    case OptimizerKind::lion:
      return std::make_unique<Lion>(
          std::move(parameters),
          LionOptions{.learning_rate = o.learning_rate, .weight_decay = o.weight_decay, .decay_matrices_only = true});
    case OptimizerKind::muon:
      return std::make_unique<Muon>(std::move(parameters), MuonOptions{.adamw = adamw, .left_to_adamw = is_table});
  }
  return std::make_unique<AdamW>(std::move(parameters), adamw);
}

/// The optimizer of a rank that updates nothing, with more ranks than parameters.
class NoParameters final : public Optimizer {
 public:
  NoParameters() : Optimizer({}, {.groups = {}, .may_be_empty = true}) {}

 private:
  void update(std::span<const Update>, const GradientScale&) override {}
};

TrainerOptions with_rate(TrainerOptions options) {
  if (options.learning_rate == 0) options.learning_rate = usual_learning_rate(options.optimizer);
  return options;
}

std::optional<LossScaler> scaler_for(const TrainerOptions& options, Device device) {
  return options.loss_scale ? std::optional<LossScaler>(std::in_place, device, *options.loss_scale) : std::nullopt;
}

std::unique_ptr<LanguageModel> some(std::unique_ptr<LanguageModel> model) {
  if (model == nullptr) throw ValueError("[train] there is no model");
  return model;
}

std::uint64_t bytes_of(const NamedTensors& tensors) {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += bytes_of(tensor);
  return bytes;
}

/// Creates an empty file that only its user can read. Returns false, changing nothing, if the path exists, even as a
/// link.
bool create_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (descriptor >= 0) ::close(descriptor);
  return descriptor >= 0;
}

/// Calls f for `path`. If it cannot be written, calls f for each of the other paths that does not exist yet, until one
/// succeeds. The FileError then names that path.
template <class F>
void write_somewhere(const std::string& path, const std::vector<std::string>& others, const F& f) {
  std::string reason;
  try {
    return f(path);
  } catch (const FileError& error) {
    reason = error.what();
  }
  for (const std::string& other : others) {
    if (!create_file(other)) continue;
    try {
      f(other);
    } catch (const FileError&) {
      ::unlink(other.c_str());
      continue;
    }
    throw FileError(reason + "; the checkpoint is " + printable_path(other) + " instead");
  }
  throw FileError(reason);
}

double total(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

void add_to(std::vector<double>& sums, const std::vector<double>& values) {
  sums.resize(std::max(sums.size(), values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

/// Sums over validation batches of the texts of a corpus, which must outlive it.
class ValidationSums {
 public:
  explicit ValidationSums(const Corpus& corpus) : corpus_(corpus), scores_(corpus.texts.size()) {}

  /// Returns the sum over all targets of a text so far, or the sums by position. The caller adds to it.
  std::vector<double>& nats(std::size_t text) { return scores_[text].nats; }
  /// Adds the bytes of further targets, by position.
  void add_bytes(std::size_t text, const std::vector<double>& bytes) { add_to(scores_[text].bytes, bytes); }
  ValidationLoss mean() const {
    ValidationLoss mean;
    double all = 0;  // of the scored texts
    for (std::size_t i = 0; i < scores_.size(); ++i) all += scores_[i].bytes.empty() ? 0 : corpus_.texts[i].weight;
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      const auto& [nats, bytes] = scores_[i];
      if (bytes.empty()) continue;
      const double weight = corpus_.texts[i].weight, sum = total(bytes);
      double loss = total(nats) / sum;
      if (nats.size() == bytes.size()) {
        const auto length = static_cast<double>(bytes.size());
        std::vector<double> losses, shares;
        loss = 0;
        for (std::size_t p = 0; p < bytes.size(); ++p) {
          const double share = bytes[p] / (sum / length), at_position = nats[p] / bytes[p] * share;
          loss += at_position;
          losses.push_back(weight * at_position);
          shares.push_back(weight * share);
        }
        loss /= length;
        add_to(mean.by_position, losses);
        add_to(mean.shares, shares);
      }
      mean.by_text.push_back(loss);
      mean.loss += weight * loss / all;
      mean.bytes += static_cast<std::int64_t>(sum);
    }
    if (mean.by_text.size() == 1) mean.by_text.clear();
    for (std::size_t p = 0; p < mean.shares.size(); ++p) {
      mean.by_position[p] /= mean.shares[p];
      mean.shares[p] /= all;
    }
    return mean;
  }

 private:
  struct Score {
    std::vector<double> nats, bytes;
  };
  const Corpus& corpus_;
  std::vector<Score> scores_;
};

/// Its destructor gives the model whole sequences and its former training mode, also after an exception.
struct AsBefore {
  LanguageModel& model;
  const bool trains = model.training();
  ~AsBefore() {
    model.train(trains);
    model.set_part({});
  }
};

}  // namespace

Trainer::Trainer(std::unique_ptr<LanguageModel> model, Corpus corpus, TrainerOptions options)
    : options_(with_rate(options)),
      model_(some(std::move(model))),
      corpus_(std::move(corpus)),
      windows_(corpus_, model_->config().context, options.batch, options.seed),
      device_(device_of(model_->parameters())),
      owners_(options.ranks && options.shard_optimizer ? owners_of(model_->parameters(), options.ranks->size())
                                                       : std::vector<int>()),
      optimizer_(optimizer_of(options.ranks ? options.ranks->rank() : 0)),
      average_(options.ema != 0 ? std::make_unique<EMA>(*model_, EMAOptions{.decay = options.ema, .ramp = true})
                                : nullptr),
      schedule_{.kind = options.schedule,
                .peak = options_.learning_rate,
                .warmup = std::min(warmup_steps, options.steps / 2),
                .steps = options.steps},
      scaler_(scaler_for(options, device_)),
      step_(*model_, *optimizer_, options.clip_norm, "train", scaler_ ? &*scaler_ : nullptr, options.ranks, owners_) {
  if (const std::int64_t tokens = corpus_.tokenizer->size(), known = model_->config().vocabulary;
      !corpus_.of_bytes() && tokens > known)
    throw ValueError(fmt::format("[train] the text has {} different tokens, but the model has {}", tokens, known));
  if (options.steps > largest_count)
    throw ValueError(fmt::format("[train] the steps must be at most 2^53, but are {}", options.steps));
  if (options.chunk < 0 || options.store_every < 1)
    throw ValueError(
        fmt::format("[train] chunk must not be negative and store_every must be at least 1: chunk {}, store_every {}",
                    options.chunk, options.store_every));
  step_.accumulate(options.accumulate);
  if (options.graph) step_.record();
  options.warmup.check(model_->config().context);
  if (options.graph && !options.warmup.stages.empty())
    throw ValueError("[train] a recorded step has one context, so that a context warm-up is impossible");
  if (options.ranks == nullptr) return;
  std::vector<std::int64_t> lengths{model_->config().context};
  for (const ContextWarmup::Stage& stage : options.warmup.stages) lengths.push_back(stage.context);
  for (const WindowPlan::Batch& batch : windows_.validation(1)) lengths.push_back(batch.length);
  for (const std::int64_t length : lengths)
    if (share(length).positions.count < length && options.chunk > 0)
      throw ValueError("[train] chunks need whole sequences, but a ring divides them: use one of the two");
  options.ranks->agree({{"text", corpus_.fingerprint()}, {"weights of the texts", corpus_.describe_weights()}});
}

std::vector<std::size_t> Trainer::owned_by(int rank) const {
  std::vector<std::size_t> owned;
  for (std::size_t i = 0; i < owners_.size(); ++i)
    if (owners_[i] == rank) owned.push_back(i);
  return owned;
}

std::unique_ptr<Optimizer> Trainer::optimizer_of(int rank) const {
  const NamedTensors all = model_->named_parameters();
  if (owners_.empty()) return optimizer_for(all, options_);
  NamedTensors owned;
  for (const std::size_t i : owned_by(rank)) owned.push_back(all[i]);
  if (owned.empty()) return std::make_unique<NoParameters>();
  return optimizer_for(owned, options_);
}

std::uint64_t Trainer::optimizer_bytes() const { return bytes_of(optimizer_->state()); }

std::uint64_t Trainer::checkpoint_bytes() const {
  std::uint64_t averages = 0;
  if (average_)
    for (const Tensor& parameter : model_->parameters())
      averages += static_cast<std::uint64_t>(parameter.numel()) * size_of(compute_dtype(parameter.dtype()));
  return bytes_of(model_->named_tensors()) + optimizer_bytes() + averages;
}

void Trainer::resume(const std::string& path, bool other_text, CallSite) {
  remove_abandoned_temporaries(path);
  const std::map<std::string, std::string> metadata = read_training_metadata(path);
  const auto entry = [&](const std::string& name, const std::string& otherwise) {
    return metadata.contains(name) ? metadata.at(name) : otherwise;
  };
  if (!other_text && !corpus_.has_fingerprint(entry("text", "")))
    throw ValueError(
        fmt::format("[train] the checkpoint {} was trained on another text than {}: give its text by --text, or accept "
                    "this one by --other-text",
                    printable_path(path),
                    corpus_.texts.front().path.empty() ? "this one" : printable_path(corpus_.texts.front().path)));
  if (const std::string there = entry("text_weights", ""), here = corpus_.describe_weights();
      !other_text && there != here)
    throw ValueError(fmt::format("[train] the checkpoint {} was trained on texts of weights {}, not {}",
                                 printable_path(path), there.empty() ? "none" : printable(there),
                                 here.empty() ? "none" : here));
  if (entry("merges", "") != corpus_.tokenizer->fingerprint())
    throw ValueError("[train] the checkpoint " + printable_path(path) + " has another tokenizer than the text");
  if (const std::string by = entry("optimizer", "adamw"); by != to_string(options_.optimizer))
    throw ValueError(fmt::format("[train] the checkpoint {} was trained by {}, whose state {} cannot use",
                                 printable_path(path), printable(by), to_string(options_.optimizer)));
  if (const std::string decay = entry("ema", "0"); decay != fmt::format("{}", options_.ema))
    throw ValueError(fmt::format("[train] the checkpoint {} has {}, but the run has {} (--ema)", printable_path(path),
                                 decay == "0" ? "no average" : "an average of decay " + printable(decay),
                                 options_.ema == 0 ? "none" : fmt::format("one of {}", options_.ema)));
  const auto own = owners_.empty() ? std::nullopt : std::optional(owned_by(options_.ranks->rank()));
  const auto accept = [&](const TrainingState& state) {
    if (state.step > options_.steps)
      throw ValueError(fmt::format("[train] the checkpoint {} has done {}, --steps is {}", printable_path(path),
                                   plural(state.step, "step"), options_.steps));
    if (scaler_ && state.loss_scale) scaler_->load(*state.loss_scale);
  };
  const TrainingState state = load_training_state(path, *model_, *optimizer_, own, average_.get(), accept);
  step_.set_steps(state.step);
  data_position_ = state.data_position;
  options_.generator->set_state(state.generator);
}

OptimizerState Trainer::whole_optimizer_state() const {
  OptimizerState whole(*optimizer_);
  if (owners_.empty()) return whole;
  Ranks& ranks = *options_.ranks;
  std::vector<double> steps(owners_.size());  // each rank fills in its own
  const std::vector<std::size_t> own = owned_by(ranks.rank());
  for (std::size_t i = 0; i < own.size(); ++i) steps[own[i]] = static_cast<double>(whole.parameter_steps[i]);
  ranks.sum(steps);
  whole.parameter_steps.assign(steps.begin(), steps.end());
  for (int from = 1; from < ranks.size(); ++from) {
    if (ranks.rank() != 0 && ranks.rank() != from) continue;
    std::vector<Tensor> tensors;
    const std::unique_ptr<Optimizer> theirs = ranks.rank() == 0 ? optimizer_of(from) : nullptr;
    for (const auto& [name, tensor] : theirs ? theirs->state() : optimizer_->state()) tensors.push_back(tensor);
    ranks.transfer(tensors, from, 0);
    if (theirs) whole.tensors.insert(whole.tensors.end(), theirs->state().begin(), theirs->state().end());
  }
  return whole;
}

void Trainer::save(const std::string& path, std::map<std::string, std::string> metadata,
                   const std::vector<std::string>& otherwise, CallSite) const {
  if (fingerprint_.empty()) fingerprint_ = corpus_.fingerprint();
  metadata["text"] = fingerprint_;
  if (corpus_.weighted) metadata["text_weights"] = corpus_.describe_weights();
  if (!corpus_.of_bytes()) metadata["merges"] = corpus_.tokenizer->fingerprint();
  metadata["optimizer"] = to_string(options_.optimizer);
  metadata["schedule"] = to_string(options_.schedule);
  metadata["ema"] = fmt::format("{}", options_.ema);
  const OptimizerState optimizer = whole_optimizer_state();
  if (options_.ranks != nullptr && options_.ranks->rank() != 0) return;
  const TrainingState state{.step = step_.steps(),
                            .data_position = data_position_,
                            .generator = options_.generator->state(),
                            .loss_scale = scaler_ ? std::optional(scaler_->state()) : std::nullopt,
                            .tokenizer = corpus_.tokenizer,
                            .averages = average_.get(),
                            .metadata = std::move(metadata)};
  write_somewhere(path, otherwise,
                  [&](const std::string& place) { save_training_state(place, *model_, optimizer, state); });
}

BatchShare Trainer::share(std::int64_t length) const {
  if (options_.ranks != nullptr) return options_.ranks->share(options_.batch, length);
  return {0, options_.batch, kernels::PositionMap::contiguous(length)};
}

TextWindows Trainer::share_of(std::vector<WindowPlace> places, std::int64_t length) {
  if (options_.ranks == nullptr) return windows_of(places, length, device_);
  const BatchShare own = share(length);
  const bool whole = own.positions.count == length;
  model_->set_part({.whole = length,
                    .positions = whole ? kernels::PositionMap() : own.positions,
                    .first_row = own.first_row,
                    .rows = options_.batch});
  places = {places.begin() + own.first_row, places.begin() + own.first_row + own.rows};
  if (whole) return windows_of(places, length, device_);
  const TextWindows windows = windows_of(places, length);
  const MemoryScope scope("windows", Category::input);
  const auto positions = [&](const Tensor& x) {
    Tensor taken = Tensor::empty({own.rows, own.positions.count}, x.options());
    for (const auto& piece : {own.positions.piece(0), own.positions.piece(1)})
      if (const std::int64_t step = own.positions.stride, end = piece.position + (piece.count - 1) * step + 1;
          piece.count > 0)
        slice(taken, 1, piece.row, piece.row + piece.count).copy_from(slice(x, 1, piece.position, end, step));
    return to(taken, device_);
  };
  return {positions(windows.tokens), positions(windows.targets)};
}

StepRecord Trainer::step() {
  const std::int64_t context = step_context();
  const auto tokens = static_cast<double>(step_tokens());
  std::vector<TextWindows> own;  // lives until the step is done
  std::vector<TextWindows>& batches = options_.graph ? recorded_batches_ : own;
  double bytes = 0;
  std::int64_t position = data_position_;
  const kernels::RandomKey drawn = options_.generator->state();
  const AsBefore after{*model_};
  const auto prepare = [&] {
    for (std::size_t pass = 0; pass < static_cast<std::size_t>(options_.accumulate); ++pass) {
      std::vector<WindowPlace> places;
      for (std::int64_t row = 0; row < options_.batch; ++row) {
        places.push_back(windows_.drawn(position));
        count_up(position);
      }
      for (const double of_position : windows_.target_bytes(places, context)) bytes += of_position;
      const TextWindows next = share_of(places, context);
      if (pass == batches.size()) {
        batches.push_back(next);
      } else {
        batches[pass].tokens.copy_from(next.tokens);
        batches[pass].targets.copy_from(next.targets);
      }
    }
  };
  std::size_t pass = 0;
  StepRecord record;
  try {
    record = step_.run(schedule_.rate(step_.steps() + 1), tokens, prepare, [&] { return loss_of(batches[pass++]); });
  } catch (...) {
    options_.generator->set_state(drawn);
    throw;
  }
  data_position_ = position;
  if (average_) average_->update();
  record.context = context;
  record.loss *= tokens / bytes;
  return record;
}

std::unique_ptr<Substitution> Trainer::averaged() const {
  return average_ ? std::make_unique<Substitution>(*model_, average_->tensors()) : nullptr;
}

std::string Trainer::sample(std::span<const std::int64_t> prompt, std::int64_t tokens) {
  pool().begin_phase();
  const auto averages = averaged();
  const AsBefore after{*model_};
  model_->eval();
  return sample_text(*model_, prompt, tokens, {.seed = options_.seed}, device_, corpus_.tokenizer);
}

Tensor Trainer::loss_of(const TextWindows& batch) {
  const AutocastScope autocast(options_.autocast);
  if (options_.chunk == 0) return model_->loss(batch.tokens, batch.targets, true);
  return chunked_loss(*model_, batch.tokens, batch.targets,
                      {.chunk = options_.chunk, .store_every = options_.store_every});
}

ValidationLoss Trainer::for_validation(std::int64_t batches, const ValidationVisitor& add,
                                       const std::function<bool()>& stop) {
  const NoGradGuard no_grad;
  const auto averages = averaged();
  ValidationSums sums(corpus_);
  const AsBefore after{*model_};
  model_->eval();
  for (const auto& [text, places, length] : windows_.validation(batches)) {
    pool().begin_phase();
    add(share_of(places, length), length, sums.nats(text));
    sums.add_bytes(text, windows_.target_bytes(places, length));
    if (stop && stop()) return {};
  }
  if (options_.ranks != nullptr)
    for (std::size_t text = 0; text < corpus_.texts.size(); ++text)
      if (!sums.nats(text).empty()) options_.ranks->sum(sums.nats(text));
  return sums.mean();
}

ValidationLoss Trainer::validate(std::int64_t batches) {
  return for_validation(batches, [&](const TextWindows& batch, std::int64_t, std::vector<double>& nats) {
    nats.resize(1);
    nats[0] += loss_of(batch).item();
  });
}

ValidationLoss Trainer::loss_by_position(std::int64_t batches, const std::function<bool()>& stop) {
  const auto add = [&](const TextWindows& batch, std::int64_t length, std::vector<double>& nats) {
    nats.resize(static_cast<std::size_t>(length));
    const kernels::PositionMap positions = share(length).positions;
    const std::int64_t chunk = options_.chunk > 0 ? options_.chunk : length;
    const AutocastScope autocast(options_.autocast);
    auto state = model_->new_state(length);
    for (std::int64_t begin = 0; begin < positions.count; begin += chunk) {
      const std::int64_t end = std::min(begin + chunk, positions.count), steps = end - begin;
      const auto part = [&](const Tensor& x) { return slice(x, 1, begin, end); };
      const std::vector<double> losses =
          model_->losses(part(batch.tokens), part(batch.targets), options_.chunk > 0 ? &state : nullptr)
              .to_vector<double>();
      for (std::int64_t i = 0; i < std::ssize(losses); ++i)
        nats[static_cast<std::size_t>(positions.position(begin + i % steps))] += losses[static_cast<std::size_t>(i)];
    }
  };
  return for_validation(batches, add, stop);
}

}  // namespace poolgrad::nn
