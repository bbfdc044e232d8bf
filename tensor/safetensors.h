// safetensors files: named tensors and a string map. Untrusted input is checked before any allocation. Writing is
// atomic (a temporary file beside the target, synced, then renamed), so an old file survives a full disk.
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
  /// Names and dtypes of tensors that were skipped because poolgrad lacks the dtype ("U32", "F4", "F8_E8M0").
  std::map<std::string, std::string> unsupported = {};

  /// Throws FileError for a missing name, with similar names, and for a skipped tensor, with its dtype.
  const Tensor& at(const std::string& name) const;
  /// Returns whether at() finds the name.
  bool contains(const std::string& name) const;
  /// Throws FileError, like at(), if a skipped tensor's name starts with `start`.
  void check_complete(std::string_view start = "") const;
};

/// Reads tensors of a file one at a time into existing memory, so that no model is in memory twice.
class SafetensorsReader {
 public:
  /// Reads and checks everything except the tensors' bytes. Throws FileError.
  explicit SafetensorsReader(const std::string& path, CallSite = {});
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  /// Returns the result of load_safetensors() without the bytes: each tensor, on the CPU, is a view of one element.
  const SafetensorsFile& outline() const;
  /// Reads into a tensor of the same shape and dtype and advances its version counter; leaves one of a simulated device
  /// unchanged. Throws ValueError before it writes. Throws FileError; some elements may then be overwritten.
  void read(const std::string& name, Tensor into, CallSite = {}) const;

 private:
  struct Impl;
  const std::unique_ptr<const Impl> impl_;
};

/// Throws FileError with path, reason and, if known, offset. Skips tensors of the format's dtypes that poolgrad lacks.
SafetensorsFile load_safetensors(const std::string& path, Device device = cpu, CallSite = {});
/// Throws FileError, and ValueError for content that could not be read back.
void save_safetensors(const std::string& path, const SafetensorsFile& file, CallSite = {});

}  // namespace poolgrad
