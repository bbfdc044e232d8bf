// What the C interface looks for in PyTorch's libc10.so, as a library of the same name has it in tests.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace c10 {

struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

class OutOfMemoryError : public std::exception {
 public:
  OutOfMemoryError(SourceLocation where, std::string what);
  OutOfMemoryError(const OutOfMemoryError&) = delete;
  ~OutOfMemoryError() override;

  const char* what() const noexcept override { return what_.c_str(); }
  const char* function() const { return function_.c_str(); }
  /// Errors that live now.
  static int alive();

 private:
  std::string function_, what_;
};

}  // namespace c10
