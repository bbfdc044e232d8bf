// What a Tensor handle points to. Private to tensor/.
#pragma once

#include <memory>
#include <utility>

#include "tensor/tensor.h"

namespace poolgrad {

struct Tensor::Impl {
  Impl(std::shared_ptr<Storage> memory, const Geometry& where, DType type, std::int64_t elements, bool row_major)
      : storage(std::move(memory)), geometry(where), count(elements), dtype(type), contiguous(row_major) {}

  std::shared_ptr<Storage> storage;
  std::shared_ptr<GradRecord> record;
  Geometry geometry;
  std::int64_t count;
  DType dtype;
  bool contiguous;
};

}  // namespace poolgrad
