// safetensors files: named tensors and a string map. Hostile input is refused before any allocation; writing is atomic
// (a temporary file beside the target, synced, then renamed), so an old file survives a full disk.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

struct SafetensorsFile {
  std::vector<std::pair<std::string, Tensor>> tensors;  // in file order
  std::map<std::string, std::string> metadata;
  /// Tensors of the file that were left out, with their dtypes, which poolgrad has none of ("U32", "F4", "F8_E8M0").
  std::map<std::string, std::string> unsupported = {};

  /// Throws FileError that lists near names where it is missing, and that names the dtype of one that was left out.
  const Tensor& at(const std::string& name) const;
  /// True if at() has it.
  bool contains(const std::string& name) const;
  /// Throws FileError, as at() does, if a tensor was left out whose name begins so.
  void check_complete(std::string_view start = "") const;
};

/// A file whose tensors are read one at a time into memory that is there already, so that no model is in memory twice.
class SafetensorsReader {
 public:
  /// Reads and checks all but the tensors' bytes. Throws FileError.
  explicit SafetensorsReader(const std::string& path, CallSite = {});
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  /// What load_safetensors() returns, without the bytes: each tensor, on the CPU, is a view of one element.
  const SafetensorsFile& outline() const;
  /// Into a tensor of the same shape and dtype, whose version counter advances; one of a simulated device stays as it
  /// is. Throws FileError, after which some of its elements may have been written, and ValueError before.
  void read(const std::string& name, Tensor into, CallSite = {}) const;

 private:
  struct Impl;
  const std::unique_ptr<const Impl> impl_;
};

/// Throws FileError: path, reason, and offset where there is one. Leaves out the tensors whose dtype the format knows
/// and poolgrad does not.
SafetensorsFile load_safetensors(const std::string& path, Device device = cpu, CallSite = {});
/// Throws FileError, and ValueError for what could not be read again.
void save_safetensors(const std::string& path, const SafetensorsFile& file, CallSite = {});

}  // namespace poolgrad
