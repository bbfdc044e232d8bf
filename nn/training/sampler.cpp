#include "nn/training/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "allocator/base/random.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/views.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

namespace {

void penalise(std::vector<double>& logits, std::span<const std::int64_t> recent, const SamplerOptions& options) {
  if (options.repetition_penalty == 1.0) return;
  const auto window = std::min(recent.size(), static_cast<std::size_t>(options.penalty_window));
  const auto last = recent.last(window);
  for (const std::int64_t token : std::set(last.begin(), last.end())) {
    if (token < 0 || token >= std::ssize(logits)) continue;
    double& logit = logits[static_cast<std::size_t>(token)];
    logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
  }
}

/// Sets the weights of tokens outside top_k or top_p to 0.
void keep_most_probable(std::vector<double>& weights, const SamplerOptions& options) {
  const bool all = options.top_k == 0 || static_cast<std::size_t>(options.top_k) >= weights.size();
  if (all && options.top_p == 1.0) return;
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  std::size_t kept = all ? weights.size() : static_cast<std::size_t>(options.top_k);
  if (options.top_p < 1.0) {
    double total = 0, sum = 0;
    for (std::size_t i = 0; i < kept; ++i) total += weights[order[i]];
    std::size_t fewest = 0;
    while (fewest < kept && sum < options.top_p * total) sum += weights[order[fewest++]];
    kept = std::max<std::size_t>(fewest, 1);
  }
  for (std::size_t i = kept; i < order.size(); ++i) weights[order[i]] = 0;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  const auto refuse = [](const char* name, const char* range, auto value) {
    throw ValueError(fmt::format("[sampler] {} must be {}, but is {}", name, range, value));
  };
  if (!(std::isfinite(options.temperature) && options.temperature >= 0))
    refuse("temperature", "a finite number from 0 on", options.temperature);
  if (options.top_k < 0) refuse("top_k", "0 or more", options.top_k);
  if (!(options.top_p > 0 && options.top_p <= 1)) refuse("top_p", "in (0, 1]", options.top_p);
  if (!(std::isfinite(options.repetition_penalty) && options.repetition_penalty > 0))
    refuse("repetition_penalty", "a finite number above 0", options.repetition_penalty);
  if (options.penalty_window < 0) refuse("penalty_window", "0 or more", options.penalty_window);
}

std::vector<double> Sampler::weights(std::vector<double> logits, std::span<const std::int64_t> recent) const {
  const auto refuse = [&](const std::string& reason) {
    throw ValueError(fmt::format("[sampler] {}, after {} tokens, in draw {}", reason, recent.size(), drawn_));
  };
  const auto nan = std::find_if(logits.begin(), logits.end(), [](double logit) { return std::isnan(logit); });
  if (nan != logits.end()) refuse(fmt::format("the logit of token {} is NaN", nan - logits.begin()));
  penalise(logits, recent, options_);
  const auto best = std::max_element(logits.begin(), logits.end());
  if (best == logits.end() || !std::isfinite(*best)) refuse("the largest logit is not finite");
  const double largest = *best;
  std::vector<double> weights;
  if (options_.temperature == 0) {
    weights.resize(logits.size());
    weights[static_cast<std::size_t>(best - logits.begin())] = 1;
    return weights;
  }
  for (const double logit : logits) weights.push_back(std::exp((logit - largest) / options_.temperature));
  keep_most_probable(weights, options_);
  return weights;
}

std::vector<double> Sampler::probabilities(std::vector<double> logits, std::span<const std::int64_t> recent) const {
  std::vector<double> result = weights(std::move(logits), recent);
  const double total = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& weight : result) weight /= total;
  return result;
}

std::int64_t Sampler::next(std::vector<double> logits, std::span<const std::int64_t> recent) {
  const std::vector<double> likely = weights(std::move(logits), recent);
  double rest = random_unit(options_.seed, drawn_++) * std::accumulate(likely.begin(), likely.end(), 0.0);
  std::size_t last = 0;  // the last token of positive weight: chosen if rounding leaves a rest
  for (std::size_t i = 0; i < likely.size(); ++i) {
    if (likely[i] > 0) last = i;
    if ((rest -= likely[i]) < 0) break;
  }
  return static_cast<std::int64_t>(last);
}

TextWriter::TextWriter(LanguageModel& model, const SamplerOptions& options, Device device,
                       std::shared_ptr<const Tokenizer> tokenizer)
    : model_(model),
      sampler_(options),
      device_(device),
      tokenizer_(tokenizer ? std::move(tokenizer) : std::make_shared<const Tokenizer>()),
      state_(model.new_state()) {}

void TextWriter::read(std::string_view text) { read(tokenizer_->encode(text)); }

void TextWriter::read(std::span<const std::int64_t> tokens) {
  text_.insert(text_.end(), tokens.begin(), tokens.end());
  note(tokens);
}

void TextWriter::note(std::span<const std::int64_t> tokens) {
  const std::int64_t window = sampler_.options().penalty_window, kept = std::ssize(recent_);
  tokens = tokens.last(static_cast<std::size_t>(std::min(std::ssize(tokens), window)));
  recent_.erase(recent_.begin(), recent_.begin() + std::max<std::int64_t>(kept + std::ssize(tokens) - window, 0));
  recent_.insert(recent_.end(), tokens.begin(), tokens.end());
}

std::string_view TextWriter::write(CallSite) {
  if (text_.empty()) throw ValueError("[text_writer] there is no text to continue");
  const NoGradGuard no_grad;
  const std::int64_t context = model_.config().context;
  std::vector<std::int64_t> uncut;
  if (std::ssize(text_) > context) {
    uncut = text_;
    text_.erase(text_.begin(), text_.end() - std::max<std::int64_t>(context / 2, 1));
    forget();
    ++restarts_;
  }
  const std::vector<std::int64_t> unread(text_.begin() + known_, text_.end());
  const std::int64_t length = std::ssize(unread);
  try {
    Tensor tokens;
    {
      const MemoryScope scope("sample", Category::input);
      tokens = from_data(unread, {1, length}, device_);
    }
    const bool continues = model_.continues();
    const Tensor logits = model_.logits(tokens, continues ? &state_ : nullptr);
    if (continues) known_ += length;
    std::vector<double> row = select(select(logits, 1, length - 1), 0, 0).to_vector<double>();
    row.resize(std::min(row.size(), static_cast<std::size_t>(tokenizer_->size())));
    text_.push_back(sampler_.next(std::move(row), recent_));
  } catch (...) {
    if (!uncut.empty()) {
      text_ = std::move(uncut);
      --restarts_;
    }
    forget();  // blocks may disagree on the positions that they have seen
    throw;
  }
  note({&text_.back(), 1});
  return tokenizer_->bytes_of(text_.back());
}

void TextWriter::start_anew() {
  text_.clear();
  recent_.clear();
  forget();
}

void TextWriter::forget() {
  state_ = model_.new_state();
  known_ = 0;
}

std::size_t TextWriter::cache_bytes() const {
  std::size_t bytes = 0;
  for (const SequenceState& block : state_)
    for (const Tensor& tensor : block.tensors)
      if (tensor.defined()) bytes += bytes_of(tensor);
  return bytes;
}

std::string sample_text(LanguageModel& model, std::span<const std::int64_t> prompt, std::int64_t tokens,
                        const SamplerOptions& options, Device device, std::shared_ptr<const Tokenizer> tokenizer,
                        CallSite) {
  if (prompt.empty()) throw ValueError("[sample_text] the prompt must not be empty");
  TextWriter writer(model, options, device, std::move(tokenizer));
  writer.read(prompt);
  const std::int64_t room = model.config().context - std::ssize(prompt);
  std::string text;
  for (std::int64_t i = 0; i < std::min(tokens, room); ++i) text += writer.write();
  return text;
}

std::string sample_text(LanguageModel& model, const std::string& prompt, std::int64_t bytes,
                        const SamplerOptions& options, Device device, CallSite) {
  return sample_text(model, Tokenizer().encode(prompt), bytes, options, device);
}

}  // namespace poolgrad::nn
