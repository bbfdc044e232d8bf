// safetensors files: named tensors and a string map. Hostile input is refused before any allocation; writing is atomic
// (a temporary file beside the target, synced, then renamed), so an old file survives a full disk.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

struct SafetensorsFile {
  std::vector<std::pair<std::string, Tensor>> tensors;  // in file order
  std::map<std::string, std::string> metadata;

  /// Throws FileError that lists near names where it is missing.
  const Tensor& at(const std::string& name) const;
  bool contains(const std::string& name) const;
};

/// Throws FileError: path, reason, and offset where there is one.
SafetensorsFile load_safetensors(const std::string& path, Device device = cpu);
void save_safetensors(const std::string& path, const SafetensorsFile& file);

}  // namespace poolgrad
