// The kinds of block-sparse patterns and their names, for tests that loop over them.
#pragma once

#include <cstddef>
#include <string>

#include "attention/pattern/sparse_pattern_config.h"

namespace poolgrad::attention {

inline constexpr SparsePatternType all_types[] = {SparsePatternType::local_window, SparsePatternType::dilated_sparse,
                                                  SparsePatternType::global_local, SparsePatternType::strided,
                                                  SparsePatternType::axial,        SparsePatternType::random};

inline std::string to_string(SparsePatternType type) {
  constexpr const char* names[] = {"local_window", "dilated_sparse", "global_local", "strided", "axial", "random"};
  return names[static_cast<std::size_t>(type)];
}

}  // namespace poolgrad::attention
