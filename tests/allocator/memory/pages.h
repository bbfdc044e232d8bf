// Page sizes for the tests of devices.
#pragma once

#include <cstddef>

namespace poolgrad::testing {

inline constexpr std::size_t page = std::size_t{2} << 20;
inline constexpr std::size_t capacity = 16 * page;

}  // namespace poolgrad::testing
