// Learning rates and contexts over time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace poolgrad::nn {

/// A linear warm-up over `warmup` steps to `peak`, followed by a decay. Steps count from 1; without warm-up, step 1 has
/// the peak. After the last step the rate stays constant, even if that step is within the warm-up.
struct Schedule {
  enum class Kind {
    cosine,    // half a cosine down to floor * peak at the last step (Loshchilov & Hutter 2017)
    linear,    // a line down to floor * peak
    constant,  // stays at the peak
    wsd,       // warm-up, stable, decay: the peak, then a line down over the last `decay` of the steps (Hu et al. 2024)
  };
  Kind kind = Kind::cosine;
  double peak = 3e-3;
  std::int64_t warmup = 20;
  std::int64_t steps = 1000;
  double floor = 0.1;
  double decay = 0.2;  // a share of the steps

  double rate(std::int64_t step) const;

  /// "cosine", "linear", "constant" or "wsd". Throws ValueError.
  static Kind parse(const std::string& text);
};
std::string to_string(Schedule::Kind kind);

/// Shorter contexts during the first steps (sequence length warm-up; Li et al. 2022). Without stages every step has the
/// whole context.
struct ContextWarmup {
  struct Stage {
    std::int64_t context = 0, last_step = 0;
  };
  std::vector<Stage> stages = {};

  /// Returns the context of a step, counted from 1: that of the first stage that has not ended, else `whole`.
  std::int64_t context(std::int64_t step, std::int64_t whole) const;
  /// Throws ValueError unless contexts and last steps are positive and rise, the contexts to less than `whole`.
  void check(std::int64_t whole) const;

  /// "none", or stages CONTEXT:STEP separated by commas, such as "128:500,256:1000". Throws ValueError.
  static ContextWarmup parse(const std::string& text);
};

}  // namespace poolgrad::nn
