#include "attention/ring/slots.h"

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

RingSlots::RingSlots(const RingPlan& plan, Communicator& communicator, RingStatistics& statistics, const Tensor& first,
                     const Tensor& second, DType dtype, std::size_t buffers)
    : plan_(plan),
      communicator_(communicator),
      statistics_(statistics),
      first_(first.shape()),
      second_(second.shape()),
      buffers_(buffers) {
  const MemoryScope scope(Category::comm);
  const std::int64_t most = plan.most_keys();
  const std::int64_t bytes = message_bytes(with_tokens(first_, most), with_tokens(second_, most), dtype);
  for (Tensor& buffer : buffers_)
    buffer = Tensor::empty({bytes / static_cast<std::int64_t>(size_of(dtype))}, {dtype, first.device()});
}

RingSlots::Pair RingSlots::pair(std::size_t number, int owner) const {
  const Tensor& whole = buffers_[number];
  const std::int64_t tokens = plan_.keys_of(owner).count;
  const Shape first = with_tokens(first_, tokens), second = with_tokens(second_, tokens);
  return {whole.alias({first, contiguous_strides(first), 0}),
          whole.alias({second, contiguous_strides(second), begin_of_second(first, whole.dtype())})};
}

Message RingSlots::message(End end) const {
  const std::int64_t tokens = end.owner == nobody ? 0 : plan_.keys_of(end.owner).count;
  if (tokens == 0) return {};
  const Tensor& whole = buffers_[end.buffer];
  return {whole.view().data, message_bytes(with_tokens(first_, tokens), with_tokens(second_, tokens), whole.dtype())};
}

void RingSlots::start(int distance, End out, End in) {
  const int ranks = communicator_.size(), rank = communicator_.rank();
  const Message sent = message(out);
  transfers_.push_back(communicator_.start(current_stream(buffers_[0].device()), (rank + distance) % ranks, sent,
                                           (rank + ranks - distance % ranks) % ranks, message(in)));
  statistics_.messages += out.owner == nobody ? 0 : 1;
  statistics_.bytes_sent += sent.bytes;
}

void RingSlots::wait() {
  transfers_.front()->wait();
  transfers_.pop_front();
}

}  // namespace poolgrad::attention
