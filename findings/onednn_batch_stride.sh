#!/usr/bin/env bash
# oneDNN 3.2.0 (2.6.3 as well) on the CPU: a product of bf16 with a batch of one. The stride of the batch dimension, which
# no element needs, chooses the implementation. With a stride larger than the matrix oneDNN leaves its blocked kernel
# for gemm:jit, whose scratch holds the whole result in f32 (2.6.3: twice). The guess was: the stride has no effect.
# Needs g++ and a CPU with AVX-512.
set -euo pipefail
. "$(dirname "$0")/python.sh"
unset PYTHON
python_with onednn-devel-cpu-gomp==2023.2.0
cat >"$FINDING_FOLDER/stride.cpp" <<'CPP'
#include <cstdio>
#include <string>

#include "oneapi/dnnl/dnnl.hpp"

int main() {
  using namespace dnnl;
  const engine cpu(engine::kind::cpu, 0);
  const memory::dim m = 4096, k = 64, n = 512;
  const auto bf16 = memory::data_type::bf16;
  std::printf("oneDNN %d.%d.%d\n", dnnl_version()->major, dnnl_version()->minor, dnnl_version()->patch);
  primitive_attr attributes;
  attributes.set_scratchpad_mode(scratchpad_mode::user);
  const auto describe = [&](memory::dim stride) {
    const memory::desc a({1, m, k}, bf16, memory::dims{m * k, k, 1}), b({1, k, n}, bf16, memory::dims{stride, n, 1}),
        c({1, m, n}, bf16, memory::dims{m * n, n, 1});
    const matmul::primitive_desc product(cpu, a, b, c, attributes);
    const std::size_t scratch = product.scratchpad_desc().get_size();
    std::printf("stride %ld of the only matrix of %ld: %s, %zu bytes of scratch\n", long(stride), long(k * n),
                product.impl_info_str(), scratch);
    return std::string(product.impl_info_str()) + (scratch > m * n * 4 ? ", scratch of the result" : "");
  };
  const std::string tight = describe(k * n), wide = describe(n * n);
  return !(tight.starts_with("brg:avx512") && wide == "gemm:jit:bf16, scratch of the result");
}
CPP
g++ -std=c++20 -I"$FINDING_FOLDER/include" "$FINDING_FOLDER/stride.cpp" -o "$FINDING_FOLDER/stride" \
  -L"$FINDING_FOLDER/lib" -l:libdnnl.so.3 -Wl,-rpath,"$FINDING_FOLDER/lib"
"$FINDING_FOLDER/stride"
