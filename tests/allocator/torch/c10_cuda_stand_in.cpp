#include "tests/allocator/torch/c10_stand_in.h"

void c10::throw_out_of_memory() { throw OutOfMemoryError({"throw_out_of_memory", __FILE__, __LINE__}, "its own"); }
