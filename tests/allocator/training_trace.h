// The allocation sequence of a transformer's training steps as the pool sees it, written by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "allocator/memory_scope.h"

namespace poolgrad::testing {

struct TraceModel {
  std::size_t batch = 8, context = 256, width = 192, layers = 4, heads = 6, vocabulary = 256;
};

/// One allocation (`id` is new) or release (`id` is known).
struct TraceEvent {
  bool allocates = false;
  std::size_t id = 0;
  std::size_t bytes = 0;
  Category category = Category::unknown;
};

/// Writes events as an eager framework makes them: activations live until backward has used them, gradients of
/// parameters until the next step begins, temporaries for one or two operators.
class TrainingTrace {
 public:
  explicit TrainingTrace(TraceModel model) : m_(model) {
    const std::size_t c = m_.width;
    for (std::size_t layer = 0; layer < m_.layers; ++layer) {
      for (const std::size_t size : {c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c}) {
        shapes_.push_back(4 * size);
      }
    }
    for (const std::size_t size : {m_.vocabulary * c, m_.context * c, c, c, m_.vocabulary * c}) {
      shapes_.push_back(4 * size);
    }
    for (const std::size_t bytes : shapes_) parameters_.push_back(make(bytes, Category::parameter));
  }

  /// Returns the events since the last call; the first call returns the allocation of the parameters.
  std::vector<TraceEvent> take() { return std::exchange(events_, {}); }

  void step() {
    for (const std::size_t gradient : gradients_) drop(gradient);
    gradients_.clear();
    const std::size_t tokens = m_.batch * m_.context;
    const std::size_t row = 4 * tokens * m_.width;
    const std::size_t statistic = 4 * tokens;
    const std::size_t input = make(8 * tokens, Category::input);
    const std::size_t target = make(8 * tokens, Category::input);
    std::vector<std::vector<std::size_t>> saved;
    std::size_t x = make(row, Category::activation);
    for (std::size_t layer = 0; layer < m_.layers; ++layer) saved.push_back(forward(x, row, statistic));
    const std::size_t normed = make(row, Category::activation);
    const std::size_t mean = make(statistic, Category::activation);
    const std::size_t logits = make(4 * tokens * m_.vocabulary, Category::activation);
    const std::size_t loss = make(4, Category::activation);
    const std::size_t losses = make(statistic, Category::temp);
    drop(losses);

    std::size_t next = shapes_.size();
    const std::size_t d_logits = make(4 * tokens * m_.vocabulary, Category::gradient);
    drop(logits);
    gradient_of(--next);
    std::size_t d = make(row, Category::gradient);
    drop(d_logits);
    d = through(d, row, normed);
    gradient_of(--next);
    gradient_of(--next);
    drop(mean);
    drop(x);
    next = m_.layers * 12;
    for (std::size_t layer = m_.layers; layer-- > 0;) d = backward(saved[layer], d, row, next);
    gradient_of(m_.layers * 12);
    gradient_of(m_.layers * 12 + 1);
    drop(d);
    drop(loss);
    drop(input);
    drop(target);
    if (moments_.empty()) {
      for (const std::size_t bytes : shapes_) {
        moments_.push_back(make(bytes, Category::optimizer_state));
        moments_.push_back(make(bytes, Category::optimizer_state));
      }
    }
    for (std::size_t i = 0; i < shapes_.size(); ++i) drop(make(8, Category::temp));
  }

  std::size_t ids() const { return next_id_; }

 private:
  std::size_t make(std::size_t bytes, Category category) {
    events_.push_back({true, next_id_, bytes, category});
    return next_id_++;
  }
  void drop(std::size_t id) { events_.push_back({false, id, 0, Category::unknown}); }
  void gradient_of(std::size_t parameter) { gradients_.push_back(make(shapes_[parameter], Category::gradient)); }
  std::size_t through(std::size_t d, std::size_t bytes, std::size_t saved) {
    const std::size_t result = make(bytes, Category::gradient);
    drop(d);
    drop(saved);
    return result;
  }

  std::vector<std::size_t> forward(std::size_t& x, std::size_t row, std::size_t statistic) {
    const auto keep = [&](std::size_t bytes) { return make(bytes, Category::activation); };
    const std::size_t norm1 = keep(row), mean1 = keep(statistic), scale1 = keep(statistic);
    const std::size_t packed = make(3 * row, Category::temp);
    const std::size_t q = keep(row), k = keep(row), v = keep(row);
    drop(packed);
    const std::size_t attended = keep(row), lse = keep(statistic * m_.heads);
    const std::size_t merged = keep(row);
    const std::size_t projected = make(row, Category::temp);
    const std::size_t x1 = keep(row);
    drop(projected);
    const std::size_t norm2 = keep(row), mean2 = keep(statistic), scale2 = keep(statistic);
    const std::size_t hidden = keep(4 * row);
    const std::size_t active = keep(4 * row);
    const std::size_t out = make(row, Category::temp);
    const std::size_t x2 = keep(row);
    drop(out);
    const std::size_t x0 = std::exchange(x, x2);
    return {x0, norm1, mean1, scale1, q, k, v, attended, lse, merged, x1, norm2, mean2, scale2, hidden, active};
  }

  std::size_t backward(const std::vector<std::size_t>& s, std::size_t d, std::size_t row, std::size_t& next) {
    gradient_of(--next);
    gradient_of(--next);
    std::size_t d_hidden = make(4 * row, Category::gradient);
    drop(s[15]);
    d_hidden = through(d_hidden, 4 * row, s[14]);
    gradient_of(--next);
    gradient_of(--next);
    const std::size_t d_norm2 = make(row, Category::gradient);
    drop(d_hidden);
    drop(s[11]);
    const std::size_t d_x1 = make(row, Category::gradient);
    gradient_of(--next);
    gradient_of(--next);
    for (const std::size_t i : {10u, 12u, 13u}) drop(s[i]);
    drop(d_norm2);
    const std::size_t d1 = make(row, Category::gradient);
    drop(d_x1);
    drop(d);
    gradient_of(--next);
    gradient_of(--next);
    const std::size_t d_merged = make(row, Category::gradient);
    drop(s[9]);
    const std::size_t d_attended = make(row, Category::gradient);
    drop(d_merged);
    const std::size_t workspace = make(row / 4 + 640, Category::workspace);
    const std::size_t dq = make(row, Category::gradient), dk = make(row, Category::gradient);
    const std::size_t dv = make(row, Category::gradient);
    drop(workspace);
    drop(d_attended);
    for (const std::size_t i : {4u, 5u, 6u, 7u, 8u}) drop(s[i]);
    const std::size_t d_packed = make(3 * row, Category::gradient);
    for (const std::size_t i : {dq, dk, dv}) drop(i);
    gradient_of(--next);
    gradient_of(--next);
    const std::size_t d_norm1 = make(row, Category::gradient);
    drop(d_packed);
    drop(s[1]);
    const std::size_t d_x0 = make(row, Category::gradient);
    gradient_of(--next);
    gradient_of(--next);
    for (const std::size_t i : {0u, 2u, 3u}) drop(s[i]);
    drop(d_norm1);
    const std::size_t result = make(row, Category::gradient);
    drop(d_x0);
    drop(d1);
    return result;
  }

  TraceModel m_;
  std::vector<std::size_t> shapes_;
  std::vector<std::size_t> parameters_;
  std::vector<std::size_t> moments_;
  std::vector<std::size_t> gradients_;
  std::vector<TraceEvent> events_;
  std::size_t next_id_ = 0;
};

}  // namespace poolgrad::testing
