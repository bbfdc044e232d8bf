#include "tests/allocator/torch/c10_stand_in.h"

#include <atomic>
#include <utility>

namespace c10 {

namespace {
std::atomic<int> errors = 0;
}

Error::Error(SourceLocation where, std::string what) : function_(where.function), what_(std::move(what)) { ++errors; }

Error::~Error() { --errors; }

const char* Error::what() const noexcept { return what_.c_str(); }

int Error::alive() { return errors; }

}  // namespace c10
