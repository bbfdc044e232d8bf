// The source lines to which a trace attributes a program's allocations.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <source_location>
#include <string>
#include <tuple>

#include "allocator/caching_allocator.h"
#include "allocator/memory_scope.h"

namespace poolgrad::testing_support {

/// File name, line, operator.
using Place = std::tuple<std::string, unsigned, std::string>;

/// Returns the places of all allocations by `body` on the CPU; scratch of kernels may be excluded.
inline std::set<Place> places(const std::function<void()>& body, bool with_scratch = false) {
  CachingAllocator& pool = allocator_for(cpu);
  pool.start_trace();
  body();
  pool.stop_trace();
  const Trace trace = pool.trace();
  std::set<Place> found;
  for (const TraceEvent& event : trace.events) {
    if (event.kind != TraceKind::allocate || (event.category == Category::workspace && !with_scratch)) continue;
    const TraceLocation& at = trace.locations[event.location];
    found.emplace(at.file.substr(at.file.rfind('/') + 1), at.line, function_name(at.function));
  }
  return found;
}

/// `body` must be on the line of the call. Expects that it allocates memory, and that the trace attributes all of it to
/// this line.
inline void expect_this_line(const std::function<void()>& body,
                             std::source_location here = std::source_location::current()) {
  using ::testing::_;
  const std::string path = here.file_name();
  const ::testing::ScopedTrace trace(here.file_name(), static_cast<int>(here.line()), "");
  EXPECT_THAT(
      places(body, true),
      ::testing::AllOf(::testing::Not(::testing::IsEmpty()),
                       ::testing::Each(::testing::FieldsAre(path.substr(path.rfind('/') + 1), here.line(), _))));
}

}  // namespace poolgrad::testing_support
