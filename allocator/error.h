// The exceptions of poolgrad. Every message reads `[operator] reason: all operands`, and is the same on every device
// because shapes, dtypes and devices are checked before any dispatch. After any of them the library stays usable.
#pragma once

#include <stdexcept>
#include <string>

namespace poolgrad {

/// Base of every exception that poolgrad throws on purpose.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Shapes do not fit each other or the operator.
struct ShapeError : Error {
  using Error::Error;
};

/// A dtype is not supported by the operator, or operands differ in dtype.
struct DTypeError : Error {
  using Error::Error;
};

/// Operands live on different devices, or a device does not exist or cannot do what is asked.
struct DeviceError : Error {
  using Error::Error;
};

/// An index or dimension is out of range.
struct IndexError : Error {
  using Error::Error;
};

/// A value (option, probability, file content given by the caller) is not allowed.
struct ValueError : Error {
  using Error::Error;
};

/// No memory within the budget after every rung of the emergency ladder. `what()` is the whole report.
struct OutOfMemoryError : Error {
  using Error::Error;
};

/// A CUDA call failed; the sticky error has been cleared.
struct CudaError : Error {
  using Error::Error;
};

/// A file cannot be read or written, or its content is malformed. Names the path and the offset where there is one.
struct FileError : Error {
  using Error::Error;
};

}  // namespace poolgrad
