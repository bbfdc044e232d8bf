// Implements nn::Ranks, the interface of nn::Trainer to several ranks, over any Communicator of threads or processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/ring/communicator.h"
#include "attention/ring/ring.h"
#include "nn/training/ranks.h"

namespace poolgrad::parallel {

/// Division of work among ranks: every `ring` neighbors share sequences, and `data` such rings share batches. Rank r is
/// number r mod ring of ring r / ring.
struct Grid {
  int ring = 1, data = 1;

  int size() const { return ring * data; }
  /// Parses "ring", "data", or "ring:R,data:D" in any order. A name without a number takes the remaining ranks. Throws
  /// ValueError, one sentence, for other text and if R times D is not `ranks`.
  static Grid parse(const std::string& text, int ranks);
};
/// Returns for example "ring:2,data:4".
std::string to_string(const Grid& grid);

struct TrainingRanksOptions {
  attention::Layout layout = attention::Layout::zigzag;  // of a sequence over its ring
  std::int64_t bucket_bytes = std::int64_t{4} << 20;     // per group of summed gradients
};

/// A rank in a grid. Gradients are summed over all ranks, since all hold the same parameters. For shared sequences, the
/// mixers of the model must use ring() as communicator, RingSetup::parts_are_told and the same layout.
class TrainingRanks final : public nn::Ranks {
 public:
  /// Every rank of `all` must construct one with the same grid and options. Throws ValueError unless the grid has as
  /// many ranks as `all`.
  TrainingRanks(std::shared_ptr<attention::Communicator> all, const Grid& grid,
                const TrainingRanksOptions& options = {});

  const Grid& grid() const { return grid_; }
  attention::Layout layout() const { return options_.layout; }
  /// The ranks that share sequences with this one.
  const std::shared_ptr<attention::Communicator>& ring() const { return ring_; }

  int rank() const override { return all_->rank(); }
  int size() const override { return all_->size(); }
  nn::BatchShare share(std::int64_t rows, std::int64_t length) const override;
  void sum(std::span<double> values) override;
  std::unique_ptr<nn::GradientSums> sum_gradients(const std::vector<Tensor>& parameters) override;
  void share_out(const std::vector<Tensor>& tensors, const std::vector<int>& owners) override;
  void transfer(const std::vector<Tensor>& tensors, int from, int to) override;
  void agree(const std::vector<std::pair<std::string, std::string>>& values) override;

 private:
  std::shared_ptr<attention::Communicator> all_;
  Grid grid_;
  TrainingRanksOptions options_;
  std::shared_ptr<attention::Communicator> ring_;
};

}  // namespace poolgrad::parallel
