#include "nn/training/ranks.h"

#include <algorithm>
#include <numeric>

namespace poolgrad::nn {

std::vector<int> owners_of(const std::vector<Tensor>& parameters, int ranks) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return parameters[a].numel() > parameters[b].numel(); });
  std::vector<std::int64_t> elements(static_cast<std::size_t>(ranks));
  std::vector<int> owners(parameters.size());
  for (const std::size_t i : order) {
    const auto least = std::min_element(elements.begin(), elements.end());
    *least += parameters[i].numel();
    owners[i] = static_cast<int>(least - elements.begin());
  }
  return owners;
}

}  // namespace poolgrad::nn
