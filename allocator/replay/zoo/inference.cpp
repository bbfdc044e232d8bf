#include <algorithm>
#include <vector>

#include "allocator/replay/zoo/generators.h"

namespace poolgrad::zoo {

namespace {

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

/// What one layer needs for `tokens` new tokens while it works.
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

}  // namespace

void growing_cache(WorkloadBuilder& out) {
  // Keys and values are concatenated: with every token each layer's cache is allocated anew, one token longer.
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
  // Requests come and go; each holds pages of 32 tokens for all layers, and prompts of any length pass through.
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

}  // namespace poolgrad::zoo
