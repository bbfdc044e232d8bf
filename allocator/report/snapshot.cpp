#include "allocator/report/snapshot.h"

namespace poolgrad {

std::string_view to_string(BlockState state) {
  switch (state) {
    case BlockState::uncommitted: return "uncommitted";
    case BlockState::free: return "free";
    case BlockState::live: return "live";
    case BlockState::pending: return "pending";
    case BlockState::busy: return "busy";
    case BlockState::magazine: return "magazine";
  }
  return "invalid";
}

}  // namespace poolgrad
