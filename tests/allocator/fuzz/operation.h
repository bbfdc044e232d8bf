// The operations of a fuzzed program, as data. Any subset of them is a program too, so a failing list can be shrunk.
// Blocks have numbered slots; an operation that its slot does not allow is skipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"

namespace poolgrad::testing {

struct Operation {
  enum class Kind : std::uint8_t {
    allocate,          // `bytes` at `alignment` on `stream` into the empty `slot`
    free,              // frees the block of `slot` on `stream`, or on its allocation's stream if that is `own_stream`
    expand,            // the block of `slot` to `bytes`, on its own stream
    use,               // the block of `slot` by `stream` too
    order,             // `stream` after `slot` taken as a stream
    stream_destroyed,  // `stream`
    trim,              // `bytes`
    set_budget,        // `bytes`
    begin_step,
    finish_events,  // all work queued so far is done
    fail_call,      // the `bytes`-th device call from here on fails
    end_thread,     // `thread` ends; the next operation of that number runs on a new one
    verify          // look at the whole pool
  };
  static constexpr std::uint32_t own_stream = UINT32_MAX;

  Kind kind = Kind::verify;
  Category category = Category::activation;
  std::uint8_t thread = 0;
  std::uint32_t slot = 0;
  std::uint32_t stream = 0;
  std::size_t bytes = 0;
  std::size_t alignment = 64;
};

using Script = std::vector<Operation>;

inline std::string to_string(const Operation& operation) {
  using Kind = Operation::Kind;
  const std::string slot = std::to_string(operation.slot);
  const std::string stream =
      operation.stream == Operation::own_stream ? "its stream" : "stream " + std::to_string(operation.stream);
  const std::string bytes = operation.bytes == SIZE_MAX ? "everything" : std::to_string(operation.bytes) + " bytes";
  const std::string by = operation.thread == 0 ? "" : " by thread " + std::to_string(operation.thread);
  switch (operation.kind) {
    case Kind::allocate:
      return "allocate slot " + slot + ": " + bytes + " aligned to " + std::to_string(operation.alignment) + ", " +
             stream + ", " + std::string(to_string(operation.category)) + by;
    case Kind::free: return "free slot " + slot + " on " + stream + by;
    case Kind::expand: return "expand slot " + slot + " to " + bytes + by;
    case Kind::use: return "use slot " + slot + " on " + stream + by;
    case Kind::order: return "order " + stream + " after stream " + slot + by;
    case Kind::stream_destroyed: return "destroy " + stream + by;
    case Kind::trim: return "trim " + bytes + by;
    case Kind::set_budget: return "set budget to " + bytes + by;
    case Kind::begin_step: return "begin a step" + by;
    case Kind::finish_events: return "finish all events";
    case Kind::fail_call: return "fail device call " + std::to_string(operation.bytes) + " from now";
    case Kind::end_thread: return "end thread " + std::to_string(operation.thread);
    case Kind::verify: return "verify" + by;
  }
  return "?";
}

inline std::string to_string(const Script& script) {
  std::string text;
  for (const Operation& operation : script) text += "  " + to_string(operation) + "\n";
  return text;
}

}  // namespace poolgrad::testing
