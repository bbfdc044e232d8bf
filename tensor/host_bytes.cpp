#include "tensor/host_bytes.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "allocator/caching_allocator.h"
#include "allocator/memory/cuda_memory.h"
#include "kernels/elementwise.h"

namespace poolgrad {

namespace {

constexpr std::size_t piece = PinnedMemory::page;

/// Host memory as the target of device copies: pinned if available.
class Landing {
 public:
  explicit Landing(Device device) : pool_(pinned_allocator_for(device)), host_{device, PinnedMemory::host_stream} {
    const MemoryScope scope("read_bytes", Category::workspace);
    const auto had = pool_.try_allocate({.bytes = piece, .alignment = piece, .stream = host_});
    if (void* const* const block = std::get_if<void*>(&had))
      pinned_ = *block;
    else
      pageable_ = Tensor::empty({static_cast<std::int64_t>(piece)}, {DType::u8, cpu});
  }
  ~Landing() {
    if (pinned_ != nullptr) pool_.deallocate(pinned_, piece, piece, host_);
  }
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;

  void* data() const { return pinned_ != nullptr ? pinned_ : pageable_.storage()->data(); }

 private:
  CachingAllocator& pool_;
  const Stream host_;
  void* pinned_ = nullptr;
  Tensor pageable_;
};

View as_bytes(void* data, std::size_t bytes) {
  return view_at(data, DType::u8, contiguous_geometry({static_cast<std::int64_t>(bytes)}));
}

std::byte* first_byte(const Tensor& tensor) { return static_cast<std::byte*>(tensor.view().data); }

template <class F>
void for_each_piece(std::size_t bytes, const F& f) {
  for (std::size_t begin = 0; begin < bytes; begin += piece) f(begin, std::min(piece, bytes - begin));
}

}  // namespace

void use_on_current_stream(const Tensor& tensor, Access access) {
  const Storage& storage = *tensor.storage();
  if (!storage.device().is_cuda()) return;
  const Stream stream = current_stream(storage.device());
  CachingAllocator& pool = storage.pool();
  if (stream != storage.stream() || pool.memory().detects_races()) pool.use(storage.data(), stream, access);
}

void read_bytes(const Tensor& tensor, const std::function<void(const void*, std::size_t)>& take) {
  const Device device = tensor.device();
  if (tensor.numel() == 0) return;
  if (device.is_sim()) {
    const Tensor zeros =
        Tensor::empty({static_cast<std::int64_t>(std::min(piece, bytes_of(tensor)))}, {DType::u8, cpu});
    std::memset(first_byte(zeros), 0, bytes_of(zeros));
    return for_each_piece(bytes_of(tensor), [&](std::size_t, std::size_t bytes) { take(first_byte(zeros), bytes); });
  }
  use_on_current_stream(tensor, Access::reads);
  const Tensor dense = tensor.is_contiguous() ? tensor : tensor.copy();
  if (device.is_cpu()) return take(first_byte(dense), bytes_of(dense));
  const Landing landing(device);
  for_each_piece(bytes_of(dense), [&](std::size_t begin, std::size_t bytes) {
    kernels::copy(current_stream(device), as_bytes(landing.data(), bytes), as_bytes(first_byte(dense) + begin, bytes));
    take(landing.data(), bytes);
  });
}

void write_bytes(const Tensor& tensor, const std::function<void(void*, std::size_t)>& give) {
  const Device device = tensor.device();
  if (tensor.numel() == 0 || device.is_sim()) return;
  if (!tensor.is_contiguous()) {
    const Tensor dense = Tensor::empty_like(tensor);
    write_bytes(dense, give);
    use_on_current_stream(tensor, Access::writes);
    return kernels::copy(current_stream(device), tensor.view(), dense.view());
  }
  if (device.is_cpu()) return give(first_byte(tensor), bytes_of(tensor));
  use_on_current_stream(tensor, Access::writes);
  const Tensor staged = Tensor::empty({static_cast<std::int64_t>(std::min(piece, bytes_of(tensor)))}, {DType::u8, cpu});
  for_each_piece(bytes_of(tensor), [&](std::size_t begin, std::size_t bytes) {
    give(first_byte(staged), bytes);
    kernels::copy(current_stream(device), as_bytes(first_byte(tensor) + begin, bytes),
                  as_bytes(first_byte(staged), bytes));
  });
}

}  // namespace poolgrad
