#include "nn/training/validation.h"

#include <algorithm>
#include <numeric>

namespace poolgrad::nn {

namespace {

double total(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

void add_to(std::vector<double>& sums, const std::vector<double>& values) {
  sums.resize(std::max(sums.size(), values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
}

}  // namespace

void ValidationSums::add_bytes(std::size_t text, const std::vector<double>& bytes) {
  add_to(scores_[text].bytes, bytes);
}

ValidationLoss ValidationSums::mean() const {
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

}  // namespace poolgrad::nn
