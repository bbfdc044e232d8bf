#include "kernels/dtype.h"

#include <string>

#include "allocator/error.h"

namespace poolgrad {
namespace {
constexpr std::string_view names[] = {"f64", "f32", "f16", "bf16", "i64", "i32", "u8", "bool"};
}  // namespace

std::string_view to_string(DType dtype) { return names[static_cast<std::size_t>(dtype)]; }

DType parse_dtype(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < std::size(names); ++i) {
    if (name == names[i]) return static_cast<DType>(i);
    known += (i ? ", " : "") + std::string(names[i]);
  }
  throw DTypeError("[parse_dtype] unknown dtype '" + std::string(name) + "': known are " + known);
}

}  // namespace poolgrad
