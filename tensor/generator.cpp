#include "tensor/generator.h"

#include <string>

#include "allocator/error.h"

namespace poolgrad {

kernels::RandomKey Generator::take(std::int64_t count) {
  if (count < 0) throw ValueError("[generator] cannot take " + std::to_string(count) + " numbers");
  const kernels::RandomKey key = key_;
  key_.offset += static_cast<std::uint64_t>(count);
  return key;
}

Generator& default_generator() {
  thread_local Generator generator;
  return generator;
}

void manual_seed(std::uint64_t seed) { default_generator().set_seed(seed); }

}  // namespace poolgrad
