// Where dq of one head is summed up in the backward pass: in place, or in scratch that is written out afterwards.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention/backward_call.h"

namespace poolgrad::kernels::attention {

/// Rows of a head, in T, to the rows of a gradient.
template <class T>
void write_rows(const View& to, std::int64_t batch, std::int64_t head, const Progression& rows, const T* from,
                std::int64_t padded, bool accumulate) {
  const std::int64_t columns = to.shape[3];
  with_storage<T>(to.dtype, [&]<class S>(S) {
    const auto out = gather(head_of<S>(to, batch, head), rows);
    for (std::int64_t i = 0; i < rows.count; ++i, from += padded)
      for (std::int64_t j = 0; j < columns; j += lanes<T>) {
        Vec<T> value = simd::load<T>(from + j);
        if (accumulate) value += simd::load_partial<T>(out.row(i) + j, columns - j);
        simd::store_partial(out.row(i) + j, value, columns - j);
      }
  });
}

/// Rows from `origin` on, of which [done, entered) are being summed up.
template <class T>
struct QueryRows {
  const BackwardCall* call;
  std::int64_t batch, head;
  bool direct;  // in place
  T* data;
  std::int64_t stride, capacity, origin, done, entered;

  T* row(std::int64_t i) const { return data + (i - origin) * stride; }

  /// Rows before `end` begin with 0.
  void enter(std::int64_t end) {
    if (end - origin > capacity && end > entered) {
      std::copy(row(done), row(entered), data);
      origin = done;
    }
    for (; entered < end; ++entered)
      if (!direct || !call->gradients.accumulate) std::fill_n(row(entered), call->padded, T{});
  }
  /// Rows before `end` are complete.
  void leave(std::int64_t end) {
    while (done < end) {
      const std::int64_t rows = std::min(end - done, capacity);
      enter(done + rows);
      if (!direct)
        write_rows(call->gradients.dq, batch, head, {done, 1, rows, 0, 1}, row(done), call->padded,
                   call->gradients.accumulate);
      done += rows;
    }
  }
};

}  // namespace poolgrad::kernels::attention
