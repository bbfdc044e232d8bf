#include "attention/ring_slots.h"

#include "allocator/memory_scope.h"
#include "tensor/geometry.h"

namespace poolgrad::attention {

namespace {

/// Elements before the second tensor of a message, which begins at a multiple of 16 bytes.
std::int64_t begin_of_second(const Shape& first, DType dtype) {
  const auto unit = static_cast<std::int64_t>(16 / size_of(dtype));
  return kernels::ceil_div(count(first), unit) * unit;
}

std::int64_t message_bytes(const Shape& first, const Shape& second, DType dtype) {
  return (begin_of_second(first, dtype) + count(second)) * static_cast<std::int64_t>(size_of(dtype));
}

Shape with_tokens(Shape shape, std::int64_t tokens) {
  shape[1] = tokens;
  return shape;
}

}  // namespace

std::int64_t ring_message_bytes(std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t width,
                                std::int64_t value_width, DType dtype) {
  return message_bytes({batch, tokens, heads, width}, {batch, tokens, heads, value_width}, dtype);
}

RingSlots::RingSlots(const RingPlan& plan, const Tensor& first, const Tensor& second, DType dtype)
    : plan_(plan), first_(first.shape()), second_(second.shape()) {
  const MemoryScope scope(Category::comm);
  const std::int64_t most = plan.most_keys();
  const std::int64_t bytes = message_bytes(with_tokens(first_, most), with_tokens(second_, most), dtype);
  for (Tensor& buffer : buffers_)
    buffer = Tensor::empty({bytes / static_cast<std::int64_t>(size_of(dtype))}, {dtype, first.device()});
}

RingSlots::Pair RingSlots::pair(int number, int owner) const {
  const Tensor& whole = buffer(number);
  const std::int64_t tokens = plan_.keys_of(owner).count;
  const Shape first = with_tokens(first_, tokens), second = with_tokens(second_, tokens);
  return {whole.alias({first, contiguous_strides(first), 0}),
          whole.alias({second, contiguous_strides(second), begin_of_second(first, whole.dtype())})};
}

Message RingSlots::message(int number, int owner) const {
  const std::int64_t tokens = plan_.keys_of(owner).count;
  const Tensor& whole = buffer(number);
  return {whole.view().data,
          tokens == 0 ? 0 : message_bytes(with_tokens(first_, tokens), with_tokens(second_, tokens), whole.dtype())};
}

void RingSlots::start(Communicator& communicator, int number, int owner, int distance, RingStatistics& statistics) {
  const int ranks = communicator.size(), rank = communicator.rank();
  const Message out = message(number, owner);
  // What arrives belongs to the rank that lies as far behind the owner.
  const Message in = message(number + 1, (owner + ranks - distance % ranks) % ranks);
  transfer_ = communicator.start(current_stream(buffers_[0].device()), (rank + distance) % ranks, out,
                                 (rank + ranks - distance % ranks) % ranks, in);
  statistics.messages += 1;
  statistics.bytes_sent += out.bytes;
}

void RingSlots::wait() {
  transfer_->wait();
  transfer_.reset();
}

}  // namespace poolgrad::attention
