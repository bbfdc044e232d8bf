// The tables of the original reports, one function each.
#pragma once

#include "examples/headline/row.h"

namespace poolgrad::examples {

Group short_sequences();      // 1K and 2K tokens, every module
Group long_sequences();       // 8K to 128K, dilated and block-sparse
Group extreme_sequences();    // 32K to 2.8M, block-sparse
Group branches_of_all();      // segments of a quarter, half and all of the sequence
Group block_sparse_limits();  // "base" against "ring"
Group memory_limits();        // the longest sequence in 8 GiB
Group varying_shapes();       // what a pool saves
Group billion_tokens();       // streamed

}  // namespace poolgrad::examples
