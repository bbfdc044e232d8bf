// The JSON header of a safetensors file, read entry by entry: nothing is built that the format does not allow.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/dtype.h"
#include "tensor/shape.h"

namespace poolgrad {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  std::string unsupported;  // the name of a dtype that there is no DType for; "" where `dtype` is the tensor's
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // bytes, relative to the end of the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

/// Throws ValueError with the reason; sizes and offsets are not compared here. Refuses duplicates and unknown keys.
SafetensorsHeader parse_safetensors_header(std::string_view text);
/// The header's JSON. Throws ValueError for a name or a text that is not UTF-8.
std::string safetensors_header(const SafetensorsHeader& header);

}  // namespace poolgrad
