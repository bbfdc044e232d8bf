#include <algorithm>

#include "allocator/replay/zoo/generators.h"
#include "allocator/replay/zoo/transformer.h"

namespace poolgrad::zoo {

void mixture_of_experts(WorkloadBuilder& out) {
  // Each token goes to two of sixteen experts; how many each expert gets differs in every layer and step.
  constexpr std::size_t experts = 16;
  const TransformerShape shape{.layers = 10, .width = 1536, .heads = 12, .vocabulary = 32000};
  Transformer model(out, shape);
  CounterRandom random(4);
  std::vector<std::vector<std::size_t>> loads;
  model.feed_forward = [&](std::size_t tokens) {
    std::size_t left = 2 * tokens;
    std::vector<std::size_t> load(experts);
    for (std::size_t i = 0; i + 1 < experts; ++i) {
      const std::size_t fair = left / (experts - i);
      load[i] = std::min(left, random.between(fair / 4, fair + fair / 2));
      left -= load[i];
    }
    load.back() = left;
    std::vector<std::uint32_t> kept = {out.allocate(4 * tokens * experts, Category::activation),
                                       out.allocate(8 * tokens, Category::activation)};
    const std::uint32_t order = out.allocate(16 * tokens, Category::temp);
    for (const std::size_t rows : load) {
      const std::size_t row = rows * shape.width * shape.element;
      kept.push_back(out.allocate(row, Category::activation));
      kept.push_back(out.allocate(4 * row, Category::activation));
      const std::uint32_t active = out.allocate(4 * row, Category::temp);
      kept.push_back(out.allocate(row, Category::activation));
      out.free(active);
    }
    out.free(order);
    return kept;
  };
  model.feed_forward_backward = [&](std::size_t, const std::vector<std::uint32_t>& kept) {
    for (std::size_t i = 2; i < kept.size(); i += 3) {
      const std::uint32_t d_out = out.allocate(out.bytes(kept[i + 2]), Category::gradient);
      const std::uint32_t d_hidden = out.allocate(out.bytes(kept[i + 1]), Category::gradient);
      out.free({kept[i + 1], d_out});
      const std::uint32_t d_in = out.allocate(out.bytes(kept[i]), Category::gradient);
      out.free({d_hidden, kept[i], kept[i + 2], d_in});
    }
    out.free({kept[0], kept[1]});
  };
  for (int step = 0; step < 12; ++step) model.step(4, 1024);
}

void two_streams(WorkloadBuilder& out) {
  // Gradients are reduced in buckets of 25 MB on a second stream while backward goes on.
  constexpr std::uint16_t network = 1;
  constexpr std::size_t bucket_bytes = 25'000'000;
  Transformer model(out, {.layers = 18, .width = 1536, .heads = 12});
  std::vector<std::uint32_t> bucket;
  std::vector<std::uint32_t> in_flight;
  std::size_t filled = 0;
  const auto reduce = [&] {
    if (bucket.empty()) return;
    for (const std::uint32_t flat : in_flight) out.free(flat);
    in_flight.clear();
    out.order(network, 0);
    const std::uint32_t flat = out.allocate(filled, Category::comm, network);
    for (const std::uint32_t gradient : bucket) out.use(gradient, network);
    const std::uint32_t received = out.allocate(filled, Category::comm, network);
    in_flight = {flat, received};
    bucket.clear();
    filled = 0;
  };
  model.on_gradient = [&](std::uint32_t gradient) {
    bucket.push_back(gradient);
    filled += out.bytes(gradient);
    if (filled >= bucket_bytes) reduce();
  };
  for (int step = 0; step < 10; ++step) {
    out.step();
    model.accumulate(4, step % 4 == 3 ? 1024 : 1536);
    reduce();
    out.free(in_flight);
    in_flight.clear();
    out.order(0, network);
    model.update();
  }
}

}  // namespace poolgrad::zoo
