#include "allocator/replay/model_device.h"

#include <algorithm>

namespace poolgrad {

namespace {

constexpr std::uintptr_t first_model_address = 0x7f0000000000;

std::size_t whole_pages(std::size_t bytes) { return (bytes + ModelDevice::page - 1) / ModelDevice::page; }

double each(const LatencyTable::Cost& cost, std::size_t bytes, std::size_t handles) {
  return cost.of(bytes) + cost.call * (static_cast<double>(handles) - 1);
}

}  // namespace

ModelDevice::ModelDevice(std::size_t capacity, const LatencyTable& latency, std::uint16_t streams)
    : capacity_(capacity),
      latency_(latency),
      busy_until_(std::max<std::size_t>(streams, 1)),
      next_address_(first_model_address) {}

std::uintptr_t ModelDevice::allocate(std::size_t bytes) {
  spend(latency_.malloc.of(bytes));
  const std::size_t pages = whole_pages(bytes);
  if (pages > (capacity_ - reserved_) / page) return 0;
  ++counters_.allocations;
  reserved_ += pages * page;
  return reserve(bytes);
}

void ModelDevice::free(std::uintptr_t, std::size_t bytes) {
  synchronize_all();
  spend(latency_.free.of(bytes));
  ++counters_.frees;
  reserved_ -= whole_pages(bytes) * page;
}

void ModelDevice::allocate_in_page(std::size_t bytes) {
  spend(latency_.malloc.of(bytes));
  ++counters_.allocations;
}

void ModelDevice::free_in_page(std::size_t bytes) {
  synchronize_all();
  spend(latency_.free.of(bytes));
  ++counters_.frees;
}

std::uintptr_t ModelDevice::reserve(std::size_t bytes) {
  const std::uintptr_t address = next_address_;
  next_address_ += std::max<std::size_t>(whole_pages(bytes), 1) * page;
  return address;
}

bool ModelDevice::map(std::size_t bytes, std::size_t handles) {
  spend(each(latency_.create, bytes, handles));
  const std::size_t pages = whole_pages(bytes);
  if (pages > (capacity_ - reserved_) / page) return false;
  spend(each(latency_.map, bytes, handles) + each(latency_.set_access, bytes, handles));
  counters_.allocations += handles;
  reserved_ += pages * page;
  return true;
}

void ModelDevice::unmap(std::size_t bytes, std::size_t handles) {
  spend(each(latency_.unmap, bytes, handles) + each(latency_.release, bytes, handles));
  counters_.frees += handles;
  reserved_ -= whole_pages(bytes) * page;
}

void ModelDevice::remap(std::size_t handles) {
  spend(static_cast<double>(handles) * (latency_.map.call + latency_.set_access.call));
}

std::uint64_t ModelDevice::record(std::uint16_t stream) {
  spend(latency_.event_record.call);
  ++counters_.events;
  double& busy = busy_until_[stream];
  busy = std::max(busy, now_ + work_delay);
  finish_.push_back(busy);
  return finish_.size();
}

bool ModelDevice::finished(std::uint64_t event) {
  spend(latency_.event_query.call);
  return finish_[event - 1] <= now_;
}

void ModelDevice::wait(std::uint16_t stream, std::uint64_t event) {
  spend(latency_.stream_wait.call);
  ++counters_.waits;
  busy_until_[stream] = std::max(busy_until_[stream], finish_[event - 1]);
}

void ModelDevice::synchronize(std::uint64_t event) {
  spend(latency_.synchronize.call + std::max(0.0, finish_[event - 1] - now_));
  ++counters_.synchronizations;
}

void ModelDevice::synchronize_stream(std::uint16_t stream) {
  // Whatever the stream was given so far is done `work_delay` from now at the latest.
  busy_until_[stream] = std::max(busy_until_[stream], now_ + work_delay);
  spend(latency_.synchronize.call + busy_until_[stream] - now_);
  ++counters_.synchronizations;
}

void ModelDevice::synchronize_all() {
  const double busy = *std::max_element(busy_until_.begin(), busy_until_.end());
  spend(latency_.synchronize.call + std::max(0.0, busy - now_));
  ++counters_.synchronizations;
}

}  // namespace poolgrad
