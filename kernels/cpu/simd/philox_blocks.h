// Many Philox blocks at once. Internal to kernels/cpu.
#pragma once

#include <cstdint>

#include "kernels/definition/philox.h"
#include "kernels/random.h"

namespace poolgrad::kernels {

/// words[4 i + j] = word j of block `first` + i, for i < count: philox_block() in vectors.
void philox_blocks(const RandomKey& key, std::uint64_t first, std::int64_t count, std::uint32_t* words);

}  // namespace poolgrad::kernels
