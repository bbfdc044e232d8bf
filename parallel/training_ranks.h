// Training on several ranks: what nn::Trainer asks of them, over any Communicator, be its ranks threads or processes.
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

/// How ranks share the work: every `ring` neighbours share sequences, and `data` such rings share batches. Rank r is
/// number r mod ring of ring r / ring.
struct Grid {
  int ring = 1, data = 1;

  int size() const { return ring * data; }
  /// "ring", "data", or "ring:R,data:D" in any order: a name without a number takes the ranks that the other leaves.
  /// Throws ValueError, one sentence, for anything else and where R times D are not the ranks.
  static Grid parse(const std::string& text, int ranks);
};
/// "ring:2,data:4"
std::string to_string(const Grid& grid);

struct TrainingRanksOptions {
  attention::Layout layout = attention::Layout::zigzag;  // of a sequence over its ring
  std::int64_t bucket_bytes = std::int64_t{4} << 20;     // of gradients that are summed together
};

/// A rank in a grid. Gradients are summed over all ranks, as all hold the same parameters. A model whose sequences are
/// shared has ring() as the communicator of its mixers, with RingSetup::parts_are_told and the same layout.
class TrainingRanks final : public nn::Ranks {
 public:
  /// Every rank of `all` makes one, with the same grid, whose size is theirs (ValueError), and options.
  TrainingRanks(std::shared_ptr<attention::Communicator> all, const Grid& grid,
                const TrainingRanksOptions& options = {});

  const Grid& grid() const { return grid_; }
  attention::Layout layout() const { return options_.layout; }
  /// Those that share sequences with this one.
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
