// What the C interface looks for in PyTorch's libraries, as libraries of the same names have it in tests.
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

/// In libc10.so.
class Error : public std::exception {
 public:
  Error(SourceLocation where, std::string what);
  Error(const Error&) = delete;
  ~Error() override;

  const char* what() const noexcept override;
  const char* function() const { return function_.c_str(); }
  /// Errors that live now.
  static int alive();

 private:
  std::string function_, what_;
};

/// As PyTorch has it: in no library but those that throw or catch it, and without a constructor that others can find.
class OutOfMemoryError : public Error {
  using Error::Error;
};

/// In libc10_cuda.so, which throws it.
void throw_out_of_memory();

}  // namespace c10
