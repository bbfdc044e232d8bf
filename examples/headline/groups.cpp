#include "examples/headline/groups.h"

namespace poolgrad::examples {

std::vector<Group> headline_groups() {
  return {short_sequences(),     long_sequences(), extreme_sequences(), branches_of_all(),
          block_sparse_limits(), memory_limits(),  varying_shapes(),    billion_tokens()};
}

}  // namespace poolgrad::examples
