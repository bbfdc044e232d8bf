// The exceptions of poolgrad. Every message reads `[operator] reason: all operands`, and is the same on every device
// because shapes, dtypes and devices are checked before any dispatch. After any of them the library stays usable.
#pragma once

#include <stdexcept>
#include <string>

namespace poolgrad {

/// Base of every exception that poolgrad throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Shapes do not fit each other or the operator.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// A dtype is not supported by the operator, or operands differ in dtype.
class DTypeError : public Error {
 public:
  using Error::Error;
};

/// Operands live on different devices, or a device does not exist or cannot do what is asked.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// An index or dimension is out of range.
class IndexError : public Error {
 public:
  using Error::Error;
};

/// A value (option, probability, file content given by the caller) is not allowed.
class ValueError : public Error {
 public:
  using Error::Error;
};

/// No memory within the budget after every rung of the emergency ladder. `what()` is the whole report.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

/// A CUDA call failed; the sticky error has been cleared.
class CudaError : public Error {
 public:
  using Error::Error;
};

/// A file cannot be read or written, or its content is malformed. Names the path and the offset where there is one.
class FileError : public Error {
 public:
  using Error::Error;
};

}  // namespace poolgrad
