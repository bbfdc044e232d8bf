// The definition of attention (docs/reference/attention.md), pair by pair in f64, in plain loops. It shares no code
// with attend(): gradients follow the textbook, as do the multiplicities of oracle_patterns.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "tensor/creation.h"
#include "tests/attention/oracle_patterns.h"

namespace poolgrad::attention::oracle {

/// An array of up to four dimensions in f64; a dimension of size 1 takes any index.
struct Array {
  std::int64_t shape[4] = {1, 1, 1, 1};
  std::int64_t strides[4] = {};
  std::vector<double> data;

  Array() = default;
  explicit Array(const Tensor& x) : data(x.to_vector<double>()) {
    for (int d = 0; d < x.dim(); ++d) shape[4 - x.dim() + d] = x.size(d);
    set_strides();
  }
  Array(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d)
      : shape{a, b, c, d}, data(static_cast<std::size_t>(a * b * c * d)) {
    set_strides();
  }
  bool empty() const { return data.empty(); }
  const double& operator()(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const {
    return data[static_cast<std::size_t>(a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3])];
  }
  double& operator()(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    return const_cast<double&>(static_cast<const Array&>(*this)(a, b, c, d));
  }
  Tensor tensor(const Shape& as) const { return from_data(data, as); }

 private:
  void set_strides() {
    std::int64_t stride = 1;
    for (int d = 3; d >= 0; stride *= shape[d--]) strides[d] = shape[d] == 1 ? 0 : stride;
  }
};

/// q (B, Nq, Hq, D), k (B, Nk, Hkv, D), v (B, Nk, Hkv, Dv); absent operands are empty.
struct Problem {
  Array q, k, v;
  Multiplicity m = dense();
  double scale = 1.0;
  std::int64_t q_offset = 0;            // position of query 0
  std::int64_t gap_begin = 0, gap = 0;  // keys from gap_begin on lie `gap` positions later
  double softcap = 0.0;
  Array bias;          // (B or 1, Hq or 1, Nq or 1, Nk or 1)
  Array padding;       // (B, 1, 1, Nk): not 0 for keys that no query of the batch entry sees
  Array alibi, sinks;  // (1, 1, 1, Hq)
  double dropout = 0.0;
  std::function<bool(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)> keeps;  // by positions

  std::int64_t batch() const { return q.shape[0]; }
  std::int64_t queries() const { return q.shape[1]; }
  std::int64_t keys() const { return k.shape[1]; }
  std::int64_t heads() const { return q.shape[2]; }
  std::int64_t kv_head(std::int64_t h) const { return h / (heads() / k.shape[2]); }
  std::int64_t key_position(std::int64_t j) const { return j < gap_begin ? j : j + gap; }
  /// Multiplicity of query i and key j.
  double count(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (!padding.empty() && padding(b, 0, 0, j) != 0) return 0;
    return static_cast<double>(m(h, heads(), i + q_offset, key_position(j)));
  }

  /// The score of a pair; sets `slope` to its derivative with respect to <q, k>.
  double score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, double* slope = nullptr) const {
    double dot = 0;
    for (std::int64_t c = 0; c < q.shape[3]; ++c) dot += q(b, i, h, c) * k(b, j, kv_head(h), c);
    double s = scale * dot;
    if (slope) *slope = scale;
    if (softcap > 0) {
      const double t = std::tanh(s / softcap);
      s = softcap * t;
      if (slope) *slope *= 1 - t * t;
    }
    if (!bias.empty()) s += bias(b, h, i, j);
    if (!alibi.empty()) s -= alibi(0, 0, 0, h) * std::abs(static_cast<double>(i + q_offset - key_position(j)));
    return s;
  }
  double kept(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (dropout == 0) return 1;
    return keeps(b, h, i + q_offset, key_position(j)) ? 1 / (1 - dropout) : 0;
  }
};

struct Result {
  Array out;  // (B, Nq, Hq, Dv)
  Array lse;  // (1, B, Hq, Nq)
};

inline Result attend(const Problem& p) {
  Result result{Array(p.batch(), p.queries(), p.heads(), p.v.shape[3]), Array(1, p.batch(), p.heads(), p.queries())};
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t h = 0; h < p.heads(); ++h)
      for (std::int64_t i = 0; i < p.queries(); ++i) {
        std::vector<double> score(static_cast<std::size_t>(p.keys()), -std::numeric_limits<double>::infinity());
        double highest = p.sinks.empty() ? -std::numeric_limits<double>::infinity() : p.sinks(0, 0, 0, h);
        for (std::int64_t j = 0; j < p.keys(); ++j) {
          const double m = p.count(b, h, i, j);
          if (m == 0) continue;
          const double s = p.score(b, h, i, j) + std::log(m);
          score[static_cast<std::size_t>(j)] = s;
          if (s > highest) highest = s;
        }
        double& lse = result.lse(0, b, h, i);
        lse = highest;
        if (std::isinf(highest) && highest < 0) continue;  // out stays 0
        double z = p.sinks.empty() ? 0 : std::exp(p.sinks(0, 0, 0, h) - highest);
        for (const double s : score) z += std::exp(s - highest);
        lse = highest + std::log(z);
        for (std::int64_t j = 0; j < p.keys(); ++j) {
          const double weight = std::exp(score[static_cast<std::size_t>(j)] - lse) * p.kept(b, h, i, j);
          for (std::int64_t c = 0; c < p.v.shape[3]; ++c) result.out(b, i, h, c) += weight * p.v(b, j, p.kv_head(h), c);
        }
      }
  return result;
}

struct Gradients {
  Array q, k, v, bias, sinks;
};

/// Gradients of <grad_out, out> + <grad_lse, lse>, by the chain rule through every weight; grad_lse may be empty.
inline Gradients gradients(const Problem& p, const Array& grad_out, const Array& grad_lse) {
  const auto like = [](const Array& x) {
    return x.empty() ? Array() : Array(x.shape[0], x.shape[1], x.shape[2], x.shape[3]);
  };
  Gradients g{like(p.q), like(p.k), like(p.v), like(p.bias), like(p.sinks)};
  const Result result = attend(p);
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t h = 0; h < p.heads(); ++h)
      for (std::int64_t i = 0; i < p.queries(); ++i) {
        const double lse = result.lse(0, b, h, i);
        if (std::isinf(lse)) continue;
        // Weights of keys and of the sink, the gradient of each, and their weighted mean.
        std::vector<double> weight(static_cast<std::size_t>(p.keys())), towards(weight), slope(weight);
        double mean = 0;
        for (std::int64_t j = 0; j < p.keys(); ++j) {
          const double m = p.count(b, h, i, j);
          if (m == 0) continue;
          const auto at = static_cast<std::size_t>(j);
          weight[at] = m * std::exp(p.score(b, h, i, j, &slope[at]) - lse);
          for (std::int64_t c = 0; c < p.v.shape[3]; ++c) {
            towards[at] += grad_out(b, i, h, c) * p.v(b, j, p.kv_head(h), c) * p.kept(b, h, i, j);
            g.v(b, j, p.kv_head(h), c) += weight[at] * p.kept(b, h, i, j) * grad_out(b, i, h, c);
          }
          mean += weight[at] * towards[at];
        }
        const double through_lse = grad_lse.empty() ? 0 : grad_lse(0, b, h, i);
        for (std::int64_t j = 0; j < p.keys(); ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (weight[at] == 0) continue;
          const double score = weight[at] * (towards[at] - mean + through_lse);
          if (!p.bias.empty()) g.bias(b, h, i, j) += score;
          for (std::int64_t c = 0; c < p.q.shape[3]; ++c) {
            g.q(b, i, h, c) += score * slope[at] * p.k(b, j, p.kv_head(h), c);
            g.k(b, j, p.kv_head(h), c) += score * slope[at] * p.q(b, i, h, c);
          }
        }
        if (!p.sinks.empty()) g.sinks(0, 0, 0, h) += std::exp(p.sinks(0, 0, 0, h) - lse) * (through_lse - mean);
      }
  return g;
}

}  // namespace poolgrad::attention::oracle
