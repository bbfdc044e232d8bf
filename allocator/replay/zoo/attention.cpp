#include <algorithm>
#include <array>
#include <utility>

#include "allocator/replay/zoo/generators.h"
#include "allocator/replay/zoo/transformer.h"

namespace poolgrad::zoo {

void dilated_segments(WorkloadBuilder& out) {
  // Each branch gathers every r-th row of segments of w rows, attends, and scatters its part back (LongNet).
  struct Branch {
    std::size_t segment, dilation;
  };
  static constexpr std::array<Branch, 5> branches = {{{2048, 1}, {4096, 2}, {8192, 4}, {16384, 6}, {32768, 12}}};
  const TransformerShape shape{.layers = 12, .width = 768, .heads = 12, .vocabulary = 32000};
  Transformer model(out, shape);
  model.attention = [&](std::size_t batch, std::size_t context) {
    std::vector<std::uint32_t> results;
    for (const Branch& branch : branches) {
      const std::size_t segment = std::min(branch.segment, context);
      const std::size_t segments = (context + segment - 1) / segment;
      const std::size_t rows = batch * segments * ((segment + branch.dilation - 1) / branch.dilation);
      const std::size_t gathered = rows * shape.width * shape.element;
      const std::vector<std::uint32_t> inputs = {out.allocate(gathered, Category::query),
                                                 out.allocate(gathered, Category::key),
                                                 out.allocate(gathered, Category::value)};
      results.push_back(out.allocate(gathered, Category::output));
      results.push_back(out.allocate(4 * rows * shape.heads, Category::temp));
      out.free(inputs);
    }
    const std::uint32_t sum = out.allocate(batch * context * shape.width * shape.element, Category::output);
    out.free(results);
    out.free(sum);
  };
  CounterRandom random(3);
  for (int step = 0; step < 8; ++step) model.step(1, 1024 * random.between(16, 33));
}

void ring_attention(WorkloadBuilder& out) {
  // Keys and values of other ranks arrive on a second stream while those at hand are worked on.
  constexpr std::size_t ranks = 8;
  constexpr std::uint16_t compute = 0;
  constexpr std::uint16_t network = 1;
  const TransformerShape shape{.layers = 10, .width = 2048, .vocabulary = 32000};
  Transformer model(out, shape);
  model.attention = [&](std::size_t batch, std::size_t context) {
    const std::size_t chunk = 2 * batch * context * shape.width * shape.element;  // keys and values
    std::uint32_t at_hand = out.allocate(chunk, Category::comm, network);
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      const std::uint32_t arriving = out.allocate(chunk, Category::comm, network);
      out.use(at_hand, compute);
      const std::uint32_t partial = out.allocate(batch * context * shape.width * 4, Category::output);
      const std::uint32_t statistics = out.allocate(4 * batch * context * shape.heads, Category::temp);
      out.order(network, compute);
      out.free({partial, statistics});
      out.free(std::exchange(at_hand, arriving));
      out.order(compute, network);
    }
    out.use(at_hand, compute);
    out.free(at_hand, compute);
  };
  for (int step = 0; step < 8; ++step) model.step(1, step % 3 == 2 ? 6144 : 8192);
}

}  // namespace poolgrad::zoo
