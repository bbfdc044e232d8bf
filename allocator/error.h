// The exceptions of poolgrad. Every message reads `[operator] reason: all operands`. It is the same on every device,
// because shapes, dtypes and devices are checked before dispatch. The library stays usable after any of them.
#pragma once

#include <stdexcept>
#include <string>

namespace poolgrad {

/// Base of all exceptions of poolgrad.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Shapes do not fit each other or the operator.
struct ShapeError : Error {
  using Error::Error;
};

/// The operator does not support a dtype, or operands differ in dtype.
struct DTypeError : Error {
  using Error::Error;
};

/// Operands are on different devices, or a device does not exist or does not support the request.
struct DeviceError : Error {
  using Error::Error;
};

/// An index or dimension is out of range.
struct IndexError : Error {
  using Error::Error;
};

/// An invalid value (option, probability, file content given by the caller).
struct ValueError : Error {
  using Error::Error;
};

/// The request does not fit after all stages of the reclaim policy. `what()` is the whole report.
struct OutOfMemoryError : Error {
  using Error::Error;
};

/// A CUDA call failed; the sticky error has been cleared.
struct CudaError : Error {
  using Error::Error;
};

/// A file cannot be read or written, or is malformed. The message has the path and, where known, the offset.
struct FileError : Error {
  using Error::Error;
};

}  // namespace poolgrad
