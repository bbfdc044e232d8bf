// Samples text from a language model: the next token of a row of logits, and text of any length after a prompt.
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

/// Options of sampling. The rules apply in this order.
struct SamplerOptions {
  /// Divides the positive logits of the last `penalty_window` tokens by it, and multiplies the others (CTRL, Keskar et
  /// al. 2019); 1: no penalty. A repeated token is penalized once.
  double repetition_penalty = 1.0;
  std::int64_t penalty_window = 64;
  /// Divides the logits; 0: the most probable token, the first of equals, for any seed.
  double temperature = 0.8;
  /// Keeps only the top_k most probable tokens, of equals the first; 0: all.
  std::int64_t top_k = 0;
  /// Keeps only the smallest set of most probable tokens with this total probability (nucleus sampling, Holtzman et al.
  /// 2020); 1: all.
  double top_p = 1.0;
  std::uint64_t seed = 1;
};

/// Draws tokens; draw n uses the n-th number of the seed.
class Sampler {
 public:
  /// Throws ValueError for a negative temperature, top_k or penalty_window, for a top_p that is not in (0, 1], and for
  /// a penalty that is not positive.
  explicit Sampler(const SamplerOptions& options = {});

  /// Returns the probability of every token after `recent`, the oldest first. Ignores recent tokens without a logit.
  /// Throws ValueError, with the number of such tokens and of the draw, for a NaN or if the largest logit is not
  /// finite.
  std::vector<double> probabilities(std::vector<double> logits, std::span<const std::int64_t> recent = {}) const;
  std::int64_t next(std::vector<double> logits, std::span<const std::int64_t> recent = {});

  const SamplerOptions& options() const { return options_; }

 private:
  /// Returns probabilities up to a factor.
  std::vector<double> weights(std::vector<double> logits, std::span<const std::int64_t> recent) const;

  SamplerOptions options_;
  std::uint64_t drawn_ = 0;
};

/// Writes text with a model of tokens; each token is drawn after all text read and written before. Keys and values stay
/// in the model's pool. A model that does not continue sequences (LanguageModel::continues()) reads all text again for
/// every token. When the context is full, the newer half of the text is read again as the start of a text, and writing
/// continues. That works with any attention and any positions.
class TextWriter {
 public:
  /// The model must outlive the writer. Unless the model is in eval() mode, its dropout applies. Without a tokenizer,
  /// tokens are bytes. Tokens that the tokenizer lacks are never written.
  explicit TextWriter(LanguageModel& model, const SamplerOptions& options = {}, Device device = cpu,
                      std::shared_ptr<const Tokenizer> tokenizer = nullptr);

  /// Adds text to read. The model sees it with the next write().
  void read(std::string_view text);
  void read(std::span<const std::int64_t> tokens);
  /// Starts a new text and forgets the old one.
  void start_anew();
  /// Returns the bytes of the next token, which may begin or end within a character. Throws ValueError if there is no
  /// text to continue, and the errors of the model; the text is then unchanged. Runs the same number of operators on
  /// every device.
  std::string_view write(CallSite = {});

  /// Returns the number of positions with cached keys and values.
  std::int64_t positions() const { return known_; }
  /// Returns the bytes of the pool that the cached keys and values take.
  std::size_t cache_bytes() const;
  /// Returns how many times the context was full.
  std::int64_t restarts() const { return restarts_; }

 private:
  /// Drops keys and values; the text will be read again.
  void forget();
  /// Remembers the last tokens for the repetition penalty.
  void note(std::span<const std::int64_t> tokens);

  LanguageModel& model_;
  Sampler sampler_;
  Device device_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  LanguageModel::State state_;
  std::vector<std::int64_t> text_;    // at most the model's context, and the text to read next
  std::int64_t known_ = 0;            // tokens of it in the state
  std::vector<std::int64_t> recent_;  // the last tokens, at most penalty_window, also from before a restart
  std::int64_t restarts_ = 0;
};

/// Continues `prompt` by so many tokens. Prompt and text together are at most the model's context. Throws ValueError
/// for an empty prompt and for options that Sampler refuses.
std::string sample_text(LanguageModel& model, std::span<const std::int64_t> prompt, std::int64_t tokens,
                        const SamplerOptions& options = {}, Device device = cpu,
                        std::shared_ptr<const Tokenizer> tokenizer = nullptr, CallSite = {});
/// The same for a model of bytes.
std::string sample_text(LanguageModel& model, const std::string& prompt, std::int64_t bytes,
                        const SamplerOptions& options = {}, Device device = cpu, CallSite = {});

}  // namespace poolgrad::nn
