#include "parallel/training_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "allocator/base/number.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "kernels/elementwise.h"
#include "nn/module.h"
#include "parallel/collectives.h"
#include "parallel/gradient_buckets.h"

namespace poolgrad::parallel {

using attention::Communicator, attention::Message;

Grid Grid::parse(const std::string& text, int ranks) {
  const auto refuse = [&](const std::string& reason) {
    throw ValueError(fmt::format(
        "[parallel] ranks share sequences (ring), batches (data) or both (ring:R,data:D): {} {}", text, reason));
  };
  constexpr int rest = -1;
  Grid grid{0, 0};
  for (const std::string& one : split(text, ',')) {
    const std::string name = one.substr(0, one.find(':'));
    int& count = name == "ring" ? grid.ring : grid.data;
    if ((name != "ring" && name != "data") || count != 0) refuse("is none of these forms");
    count = rest;
    if (name.size() < one.size()) {
      count = number_in<int>(std::string_view(one).substr(name.size() + 1)).value_or(0);
      if (count < 1) refuse("is none of these forms");
    }
  }
  if (grid.ring == rest && grid.data == rest) refuse("gives no number for either");
  for (int* const count : {&grid.ring, &grid.data})
    if (*count == 0) *count = 1;
  int& open = grid.ring == rest ? grid.ring : grid.data;
  if (open == rest) open = ranks / (grid.ring == rest ? grid.data : grid.ring);
  if (grid.size() != ranks) refuse(fmt::format("does not make {} ranks", ranks));
  return grid;
}

std::string to_string(const Grid& grid) { return fmt::format("ring:{},data:{}", grid.ring, grid.data); }

TrainingRanks::TrainingRanks(std::shared_ptr<Communicator> all, const Grid& grid, const TrainingRanksOptions& options)
    : all_(std::move(all)), grid_(grid), options_(options) {
  if (grid.ring < 1 || grid.data < 1 || grid.size() != all_->size())
    throw ValueError(fmt::format("[parallel] {} are not {} ranks", to_string(grid), all_->size()));
  std::vector<int> neighbours(static_cast<std::size_t>(grid.ring));
  std::iota(neighbours.begin(), neighbours.end(), all_->rank() / grid.ring * grid.ring);
  ring_ = group_of(all_, neighbours);
}

nn::BatchShare TrainingRanks::share(std::int64_t rows, std::int64_t length) const {
  if (rows < grid_.data)
    throw ValueError(
        fmt::format("[parallel] a batch of {} is too small to be shared by {} ranks (data)", rows, grid_.data));
  for (int one = 0; one < grid_.ring; ++one)
    if (attention::shard_map(options_.layout, length, one, grid_.ring).count < 1)
      throw ValueError(
          fmt::format("[parallel] sequences of {} are too short to be shared by {} ranks (ring)", length, grid_.ring));
  const std::int64_t row = all_->rank() / grid_.ring, first = rows * row / grid_.data;
  return {first, rows * (row + 1) / grid_.data - first,
          attention::shard_map(options_.layout, length, ring_->rank(), grid_.ring)};
}

void TrainingRanks::sum(std::span<double> values) {
  const std::string own(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  const std::vector<std::string> all = all_gather(*all_, own);
  std::vector<double> theirs(values.size());
  std::fill(values.begin(), values.end(), 0.0);
  for (int rank = 0; rank < size(); ++rank) {
    const std::string& bytes = all[static_cast<std::size_t>(rank)];
    if (bytes.size() != own.size())
      throw ValueError(fmt::format("[parallel] rank {} has {} numbers to add up, and rank {} has {}", rank,
                                   bytes.size() / sizeof(double), this->rank(), values.size()));
    std::memcpy(theirs.data(), bytes.data(), bytes.size());
    for (std::size_t i = 0; i < theirs.size(); ++i) values[i] += theirs[i];
  }
}

std::unique_ptr<nn::GradientSums> TrainingRanks::sum_gradients(const std::vector<Tensor>& parameters) {
  return std::make_unique<GradientBuckets>(all_, parameters, options_.bucket_bytes);
}

namespace {

constexpr std::int64_t apart = 64;  // tensors start at multiples of this many bytes

/// Tensors packed into one buffer of bytes.
class Packed {
 public:
  explicit Packed(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
    std::int64_t bytes = 0;
    for (const Tensor& tensor : tensors_) {
      begins_.push_back(bytes);
      bytes += (static_cast<std::int64_t>(bytes_of(tensor)) + apart - 1) / apart * apart;
    }
    const MemoryScope scope("packed", Category::comm);
    bytes_ = Tensor::empty({bytes}, {.dtype = DType::u8, .device = nn::device_of(tensors_)});
  }
  Message message() const { return {bytes_.view().data, bytes_.numel()}; }
  Stream stream() const { return current_stream(bytes_.device()); }
  void pack() const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) kernels::copy(stream(), place(i), tensors_[i].view());
  }
  void unpack() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      kernels::copy(stream(), tensors_[i].view(), place(i));
      tensors_[i].bump_version();
    }
  }

 private:
  /// The place of tensor i, row-major.
  View place(std::size_t i) const {
    View view = tensors_[i].view();
    view.data = static_cast<std::byte*>(bytes_.view().data) + begins_[i];
    std::int64_t stride = 1;
    for (int d = view.rank; d-- > 0; stride *= view.shape[d]) view.strides[d] = stride;
    return view;
  }

  std::vector<Tensor> tensors_;
  std::vector<std::int64_t> begins_;
  Tensor bytes_;
};

}  // namespace

void TrainingRanks::share_out(const std::vector<Tensor>& tensors, const std::vector<int>& owners) {
  const auto those_of = [&](int rank) {
    std::vector<Tensor> theirs;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (owners[i] == rank) theirs.push_back(tensors[i]);
    return theirs;
  };
  const Stream stream = current_stream(nn::device_of(tensors));
  const Packed own(those_of(rank()));
  own.pack();
  for (int distance = 1; distance < size(); ++distance) {  // holds two ranks' shares at a time
    const int to = (rank() + distance) % size(), from = (rank() + size() - distance) % size();
    Packed theirs(those_of(from));
    all_->start(stream, to, own.message(), from, theirs.message())->wait();
    theirs.unpack();
  }
}

void TrainingRanks::transfer(const std::vector<Tensor>& tensors, int from, int to) {
  if (from == to) return;
  const Stream stream = current_stream(nn::device_of(tensors));
  Packed packed(tensors);
  if (rank() == from) {
    packed.pack();
    all_->start(stream, to, packed.message(), to, {})->wait();
  } else {
    all_->start(stream, from, {}, from, packed.message())->wait();
    packed.unpack();
  }
}

void TrainingRanks::agree(const std::vector<std::pair<std::string, std::string>>& values) {
  std::string own;  // lengths and texts alternate
  for (const auto& [name, value] : values) own += fmt::format("{} {} {}{}", name.size(), value.size(), name, value);
  const std::vector<std::string> all = all_gather(*all_, own);
  const auto parsed = [](const std::string& text) {
    std::vector<std::pair<std::string, std::string>> result;
    for (std::size_t at = 0; at < text.size();) {
      char* next = nullptr;
      const std::size_t name = std::strtoull(text.c_str() + at, &next, 10), value = std::strtoull(next, &next, 10);
      at = static_cast<std::size_t>(next - text.c_str()) + 1;
      result.emplace_back(text.substr(at, name), text.substr(at + name, value));
      at += name + value;
    }
    return result;
  };
  const auto first = parsed(all[0]);
  for (int rank = 1; rank < size(); ++rank) {
    const auto theirs = parsed(all[static_cast<std::size_t>(rank)]);
    if (theirs.size() != first.size())
      throw ValueError(fmt::format("[parallel] rank {} runs another program than rank 0", rank));
    for (std::size_t i = 0; i < first.size(); ++i)
      if (theirs[i] != first[i])
        throw ValueError(fmt::format("[parallel] ranks differ in {}: it is {} on rank 0, and {} on rank {}",
                                     first[i].first, first[i].second, theirs[i].second, rank));
  }
}

}  // namespace poolgrad::parallel
