#include <vector>

#include "allocator/replay/zoo/generators.h"
#include "allocator/replay/zoo/transformer.h"

namespace poolgrad::zoo {

void checkerboard(WorkloadBuilder& out) {
  // Every other block goes, and what is asked for next is larger than the holes (after Robson 1974).
  constexpr std::size_t mib = std::size_t{1} << 20;
  CounterRandom random(7);
  for (int game = 0; game < 3; ++game) {
    out.step();
    std::vector<std::uint32_t> live;
    std::size_t bytes = 4 * mib;
    for (int i = 0; i < 1024; ++i) live.push_back(out.allocate(bytes, Category::activation));
    for (int round = 0; round < 5; ++round) {
      std::vector<std::uint32_t> kept;
      std::size_t freed = 0;
      const std::size_t odd = random(2);
      for (std::size_t i = 0; i < live.size(); ++i) {
        if (i % 2 == odd) {
          freed += out.bytes(live[i]);
          out.free(live[i]);
        } else {
          kept.push_back(live[i]);
        }
      }
      live = kept;
      bytes = bytes * 2 - 512 * random(64);
      for (; freed >= bytes; freed -= bytes) live.push_back(out.allocate(bytes, Category::activation));
    }
    // Small blocks among them, for a while.
    std::vector<std::uint32_t> small;
    for (int i = 0; i < 3000; ++i) {
      small.push_back(out.allocate(512 * random.between(1, 600), Category::temp));
      if (small.size() > 100) {
        const std::size_t victim = random(small.size());
        out.free(small[victim]);
        small[victim] = small.back();
        small.pop_back();
      }
    }
    out.free(small);
    out.free(live);
  }
}

void workspace_search(WorkloadBuilder& out) {
  // In the first steps every operator tries algorithms with workspaces of very different sizes and keeps the fastest.
  const TransformerShape shape{.layers = 14, .width = 1280, .heads = 10, .vocabulary = 32000};
  Transformer model(out, shape);
  CounterRandom random(8);
  int step = 0;
  std::vector<std::size_t> chosen;
  std::size_t next = 0;
  model.attention = [&](std::size_t batch, std::size_t context) {
    const std::size_t unit = batch * context * shape.width;
    std::size_t bytes = 0;
    if (step == 0) {
      for (int algorithm = 0; algorithm < 5; ++algorithm) {
        bytes = unit / 64 * random.between(1, 500);
        out.free(out.allocate(bytes, Category::workspace));
      }
      chosen.push_back(bytes);
    } else {
      bytes = chosen[next++ % chosen.size()];
    }
    out.free(out.allocate(bytes, Category::workspace));
  };
  for (; step < 12; ++step) {
    next = 0;
    model.step(6, 1024);
  }
}

}  // namespace poolgrad::zoo
