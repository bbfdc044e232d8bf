// Models of other projects' allocators, re-implemented from their documented behaviour. One source file each, whose
// header comment states the rules, the constants and what the model leaves out.
#pragma once

#include <memory>

#include "allocator/replay/policy.h"

namespace poolgrad {

std::unique_ptr<Policy> make_pytorch_native(const PolicyContext& context);
std::unique_ptr<Policy> make_pytorch_expandable(const PolicyContext& context);
std::unique_ptr<Policy> make_cuda_async(const PolicyContext& context);
std::unique_ptr<Policy> make_rmm_pool(const PolicyContext& context);
std::unique_ptr<Policy> make_rmm_arena(const PolicyContext& context);
std::unique_ptr<Policy> make_rmm_binning(const PolicyContext& context);
std::unique_ptr<Policy> make_tensorflow_bfc(const PolicyContext& context);
std::unique_ptr<Policy> make_cub(const PolicyContext& context);
/// Stitches all that is not small; its own default stitches only blocks of 512 MiB and more.
std::unique_ptr<Policy> make_gmlake(const PolicyContext& context);
std::unique_ptr<Policy> make_gmlake_limited(const PolicyContext& context, std::size_t fragment_limit);
std::unique_ptr<Policy> make_size_map_lru(const PolicyContext& context);

}  // namespace poolgrad
