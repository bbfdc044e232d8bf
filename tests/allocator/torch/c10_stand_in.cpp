#include "tests/allocator/torch/c10_stand_in.h"

#include <atomic>
#include <utility>

namespace c10 {

namespace {
std::atomic<int> errors = 0;
}

OutOfMemoryError::OutOfMemoryError(SourceLocation where, std::string what)
    : function_(where.function), what_(std::move(what)) {
  ++errors;
}

OutOfMemoryError::~OutOfMemoryError() { --errors; }

int OutOfMemoryError::alive() { return errors; }

}  // namespace c10
