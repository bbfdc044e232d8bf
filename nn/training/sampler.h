// How a language model writes: the next token of a row of logits, and text of any length from what it has read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/language_model.h"
#include "nn/text/tokenizer.h"

namespace poolgrad::nn {

/// What the next token is drawn from. The rules are applied in this order.
struct SamplerOptions {
  /// Logits of the last `penalty_window` tokens are divided by it where positive, else multiplied (CTRL, Keskar et al.
  /// 2019); 1: none. A token that came several times is penalised once.
  double repetition_penalty = 1.0;
  std::int64_t penalty_window = 64;
  /// Logits are divided by it; 0: the most probable token, the first of equals, whatever the seed.
  double temperature = 0.8;
  /// Only so many of the most probable tokens, of equals the first; 0: all.
  std::int64_t top_k = 0;
  /// Only the fewest of the most probable tokens that have this share of the probability between them (nucleus
  /// sampling, Holtzman et al. 2020); 1: all.
  double top_p = 1.0;
  std::uint64_t seed = 1;
};

/// Draws tokens; the n-th one by the n-th number of the seed.
class Sampler {
 public:
  /// Throws ValueError for a negative temperature, top_k or penalty_window, for a top_p that is not in (0, 1], and for
  /// a penalty that is not positive.
  explicit Sampler(const SamplerOptions& options = {});

  /// The probability of every token after `recent`, the oldest first, of which those without a logit are passed over.
  /// Throws ValueError, with the number of those and of the draw, for a NaN and where the largest logit is not finite.
  std::vector<double> probabilities(std::vector<double> logits, std::span<const std::int64_t> recent = {}) const;
  std::int64_t next(std::vector<double> logits, std::span<const std::int64_t> recent = {});

  const SamplerOptions& options() const { return options_; }

 private:
  /// Probabilities up to a factor.
  std::vector<double> weights(std::vector<double> logits, std::span<const std::int64_t> recent) const;

  SamplerOptions options_;
  std::uint64_t drawn_ = 0;
};

/// Text by a model of tokens, each drawn after all that was read and written before. Keys and values are kept, in the
/// model's pool; a model that does not continue sequences (LanguageModel::continues()) reads all again for every token.
/// Where the context is full, the newer half of the text is read again from its beginning, as the start
/// of a text, and writing goes on from there: any attention and any kind of positions can do that.
class TextWriter {
 public:
  /// The model must outlive the writer. Its dropout draws unless it is in eval() mode. Without a tokenizer tokens are
  /// bytes; tokens of the model that the tokenizer does not have are never written.
  explicit TextWriter(LanguageModel& model, const SamplerOptions& options = {}, Device device = cpu,
                      std::shared_ptr<const Tokenizer> tokenizer = nullptr);

  /// What comes next is text of somebody else. The model sees it with the next write().
  void read(std::string_view text);
  void read(std::span<const std::int64_t> tokens);
  /// A new text: nothing was read before.
  void start_anew();
  /// The bytes of the next token, which may begin or end within a character. Throws ValueError where there is nothing
  /// yet to go on from, and what the model throws; the text is then as before. The same number of operators runs on
  /// every device.
  std::string_view write(CallSite = {});

  /// Positions whose keys and values are kept.
  std::int64_t positions() const { return known_; }
  /// Bytes of the pool that keep them.
  std::size_t cache_bytes() const;
  /// How often the context was full.
  std::int64_t restarts() const { return restarts_; }

 private:
  /// Keys and values; the text will be read again.
  void forget();
  /// The tokens that a penalty looks at, and so many more.
  void note(std::span<const std::int64_t> tokens);

  LanguageModel& model_;
  Sampler sampler_;
  Device device_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  LanguageModel::State state_;
  std::vector<std::int64_t> text_;    // at most what the model sees, and what it is to read next
  std::int64_t known_ = 0;            // tokens of it that the state holds
  std::vector<std::int64_t> recent_;  // the last tokens, at most penalty_window, also from before a restart
  std::int64_t restarts_ = 0;
};

/// Continues `prompt` by so many tokens. At most the model's context, prompt included, is written. Throws ValueError
/// for an empty prompt and for options that Sampler refuses.
std::string sample_text(LanguageModel& model, std::span<const std::int64_t> prompt, std::int64_t tokens,
                        const SamplerOptions& options = {}, Device device = cpu,
                        std::shared_ptr<const Tokenizer> tokenizer = nullptr, CallSite = {});
/// The same of a model of bytes.
std::string sample_text(LanguageModel& model, const std::string& prompt, std::int64_t bytes,
                        const SamplerOptions& options = {}, Device device = cpu, CallSite = {});

}  // namespace poolgrad::nn
