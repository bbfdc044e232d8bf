#include "allocator/lab/zoo/zoo.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "allocator/lab/zoo/transformer.h"

namespace poolgrad {

namespace {

// --- training

void transformer(WorkloadBuilder& out) {
  Transformer model(out, {.layers = 24, .width = 2048});
  for (int step = 0; step < 10; ++step) model.step(4, 2048);
}

void alternating_batches(WorkloadBuilder& out) {
  // The last batch of an epoch is smaller, and a batch-size tuner tries larger ones.
  Transformer model(out, {.layers = 16, .width = 1536, .heads = 12});
  for (const std::size_t batch : {8u, 8u, 5u, 8u, 3u, 7u, 8u, 5u, 6u, 8u, 3u, 8u}) model.step(batch, 1000);
}

void variable_lengths(WorkloadBuilder& out) {
  // Batches are padded to their longest sequence.
  Transformer model(out, {.layers = 12, .width = 1024});
  CounterRandom random(1);
  for (int step = 0; step < 24; ++step) model.step(8, random.between(96, 2048));
}

void checkpointing(WorkloadBuilder& out) {
  Transformer model(out, {.layers = 32, .width = 2560, .heads = 20, .checkpointing = true});
  for (int step = 0; step < 8; ++step) model.step(8, 2048);
}

void optimizer_start(WorkloadBuilder& out) {
  // Optimizer states are allocated after the activations of the first step; micro-batches accumulate gradients.
  Transformer model(out, {.layers = 20, .width = 1600, .heads = 25});
  for (int step = 0; step < 5; ++step) {
    out.step();
    for (const std::size_t batch : {2u, 2u, 1u}) model.accumulate(batch, 1024);
    model.update();
  }
}

void evaluation(WorkloadBuilder& out) {
  Transformer model(out, {.layers = 16, .width = 1280, .heads = 20});
  CounterRandom random(2);
  for (int round = 0; round < 4; ++round) {
    for (int step = 0; step < 3; ++step) model.step(8, 1024);
    for (int batch = 0; batch < 4; ++batch) model.evaluate(12, 1024);
    // Generates a sample: one more token each time.
    const std::size_t prompt = random.between(16, 128);
    for (std::size_t token = 0; token < 24; ++token) model.evaluate(1, prompt + token);
  }
}

void example_training(WorkloadBuilder& out) {
  // examples/train with its defaults, but a batch of 16: f32, two layers, no master copies.
  Transformer model(out, {.layers = 2,
                          .width = 128,
                          .heads = 4,
                          .vocabulary = 256,
                          .element = 4,
                          .master_copies = false,
                          .fused_optimizer = true});
  for (int step = 0; step < 40; ++step) model.step(16, 4096);
}

// --- attention

void dilated_segments(WorkloadBuilder& out) {
  // Each branch gathers every r-th row of segments of w rows, attends, and scatters its results back (LongNet).
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
  // Keys and values of other ranks arrive on a second stream during the work on the current ones.
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

// --- several devices

void mixture_of_experts(WorkloadBuilder& out) {
  // Each token goes to two of sixteen experts; the split differs in every layer and step.
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
  // Gradients are reduced in buckets of 25 MB on a second stream during the backward pass.
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

// --- inference

struct ServedModel {
  std::size_t layers, width, kv_width, heads;
  std::size_t element = 2;
};

void make_parameters(WorkloadBuilder& out, const ServedModel& m) {
  for (std::size_t layer = 0; layer < m.layers; ++layer) {
    for (const std::size_t count : {m.width * m.width + 2 * m.width * m.kv_width, m.width * m.width,
                                    8 * m.width * m.width, 4 * m.width * m.width, m.width, m.width}) {
      out.allocate(m.element * count, Category::parameter);
    }
  }
  out.allocate(m.element * 32000 * m.width, Category::parameter);
}

/// The temporaries of one layer for `tokens` new tokens.
void run_layer(WorkloadBuilder& out, const ServedModel& m, std::size_t tokens) {
  const std::size_t row = tokens * m.width * m.element;
  const std::uint32_t normed = out.allocate(row, Category::temp);
  const std::uint32_t qkv = out.allocate(row + 2 * tokens * m.kv_width * m.element, Category::query);
  out.free(normed);
  const std::uint32_t attended = out.allocate(row, Category::output);
  out.free(qkv);
  const std::uint32_t hidden = out.allocate(8 * row, Category::temp);
  out.free(attended);
  const std::uint32_t result = out.allocate(row, Category::temp);
  out.free({hidden, result});
}

void growing_cache(WorkloadBuilder& out) {
  // Keys and values are concatenated: each token reallocates each layer's cache, one token longer.
  const ServedModel model{.layers = 20, .width = 2048, .kv_width = 2048, .heads = 16};
  constexpr std::size_t batch = 8;
  make_parameters(out, model);
  CounterRandom random(5);
  for (int request = 0; request < 5; ++request) {
    out.step();
    std::size_t length = random.between(200, 1500);
    const auto cache_bytes = [&] { return batch * length * model.kv_width * model.element; };
    std::vector<std::uint32_t> cache;
    for (std::size_t layer = 0; layer < model.layers; ++layer) {
      run_layer(out, model, batch * length);
      for (int i = 0; i < 2; ++i) cache.push_back(out.allocate(cache_bytes(), Category::cache));
    }
    for (int token = 0; token < 30; ++token) {
      ++length;
      for (std::size_t layer = 0; layer < model.layers; ++layer) {
        for (std::size_t i = 2 * layer; i < 2 * layer + 2; ++i) {
          const std::uint32_t longer = out.allocate(cache_bytes(), Category::cache);
          out.free(cache[i]);
          cache[i] = longer;
        }
        run_layer(out, model, batch);
      }
    }
    out.free(cache);
  }
}

void paged_cache(WorkloadBuilder& out) {
  // Each request holds pages of 32 tokens for all layers; prompts have any length.
  const ServedModel model{.layers = 24, .width = 2560, .kv_width = 640, .heads = 20};
  constexpr std::size_t page_tokens = 32;
  const std::size_t page_bytes = 2 * page_tokens * model.kv_width * model.element * model.layers;
  make_parameters(out, model);
  struct Request {
    std::size_t tokens, left;
    std::vector<std::uint32_t> pages;
  };
  std::vector<Request> requests;
  CounterRandom random(6);
  for (int round = 0; round < 400; ++round) {
    if (round % 10 == 0) out.step();
    std::size_t new_tokens = 0;
    if (requests.size() < 48) {
      Request request{random.between(16, 3000), random.between(20, 200), {}};
      new_tokens += request.tokens;
      requests.push_back(std::move(request));
    }
    for (Request& request : requests) {
      ++request.tokens;
      ++new_tokens;
      while (request.pages.size() * page_tokens < request.tokens) {
        request.pages.push_back(out.allocate(page_bytes, Category::cache));
      }
    }
    for (int layer = 0; layer < 2; ++layer) run_layer(out, model, new_tokens);
    for (Request& request : requests) {
      if (--request.left == 0) out.free(request.pages);
    }
    std::erase_if(requests, [](const Request& request) { return request.left == 0; });
  }
}

// --- adversarial workloads

void checkerboard(WorkloadBuilder& out) {
  // Frees every other block, then requests blocks larger than the holes (after Robson 1974).
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
    // Adds short-lived small blocks between them.
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

// --- the list

constexpr std::array<ZooEntry, 15> zoo = {{
    {"transformer", "steps of a transformer of 1.3 billion parameters, one batch size", transformer},
    {"alternating-batches", "batch sizes from 3 to 8 in turn", alternating_batches},
    {"variable-lengths", "sequence lengths from 96 to 2048 at random", variable_lengths},
    {"checkpointing", "layers run again in the backward pass", checkpointing},
    {"optimizer-start", "states appear after the first step; gradients accumulate over micro-batches", optimizer_start},
    {"evaluation", "larger batches without gradients and text generation between training steps", evaluation},
    {"example-training", "the model of examples/train", example_training},
    {"dilated-segments", "gathered segments of five dilations at random lengths", dilated_segments},
    {"ring-attention", "keys and values travel on a second stream", ring_attention},
    {"mixture-of-experts", "experts get a different number of tokens in each step", mixture_of_experts},
    {"two-streams", "gradients are reduced on a second stream during backward", two_streams},
    {"growing-cache", "inference caches that are reallocated for every token", growing_cache},
    {"paged-cache", "pages of a cache for requests that come and go", paged_cache},
    {"checkerboard", "every other block is freed, then larger ones are requested", checkerboard},
    {"workspace-search", "the first step tries workspaces of all sizes", workspace_search},
}};

}  // namespace

std::span<const ZooEntry> trace_zoo() { return zoo; }

Workload zoo_workload(std::string_view name) {
  std::string known;
  for (const ZooEntry& entry : zoo) {
    if (entry.name == name) {
      WorkloadBuilder out;
      entry.generate(out);
      return out.take(name, entry.description);
    }
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw ValueError("[zoo_workload] unknown workload " + in_quotes(name) + "; known workloads: " + known);
}

}  // namespace poolgrad
