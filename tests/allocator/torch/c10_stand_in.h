// Stand-ins for PyTorch's libraries with the symbols that the C interface looks up, under the same names.
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

/// Defined in libc10.so.
class Error : public std::exception {
 public:
  Error(SourceLocation where, std::string what);
  Error(const Error&) = delete;
  ~Error() override;

  const char* what() const noexcept override;
  const char* function() const { return function_.c_str(); }
  /// Returns the number of live errors.
  static int alive();

 private:
  std::string function_, what_;
};

/// As in PyTorch: defined only in libraries that throw or catch it, without an exported constructor.
class OutOfMemoryError : public Error {
  using Error::Error;
};

/// Defined in libc10_cuda.so; throws OutOfMemoryError.
void throw_out_of_memory();

}  // namespace c10
