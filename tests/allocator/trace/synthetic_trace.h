// Makes traces without a pool: a simulated, consistent sequence of commits, allocations and frees.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "allocator/trace/trace.h"

namespace poolgrad::testing_support {

/// Parameters of a synthetic trace. Each page has 32 places of 64 KiB, and each block is in one of them.
struct SyntheticShape {
  std::size_t windows = 2;
  std::size_t pages = 16;  // of 2 MiB, for each window
  std::size_t live = 60;   // blocks, about: few enough that pages become empty
  double delayed = 0.1;    // share of frees that wait for another stream
};

class SyntheticTrace {
 public:
  SyntheticTrace(std::uint64_t seed, std::size_t events, SyntheticShape shape = {}) : random_(seed), shape_(shape) {
    shape_.live = std::min(shape_.live, shape.windows * shape.pages * places_per_page - 1);
    trace_.device = {DeviceType::sim, 1};
    trace_.start_us = 1'700'000'000'000'000;
    trace_.settings = "budget:8GiB,trace:100000";
    trace_.streams = {0, 0x55d0c0ffee00, 7};
    trace_.scopes = {"", "model", "model.block3", "model.block3.attention", "optimizer"};
    trace_.locations = {{}, {"nn/linear.cpp", "poolgrad::Linear::forward", 42}, {"nn/adam.cpp", "step", 7}};
    const std::size_t pages = shape_.windows * shape_.pages;
    committed_.resize(pages, false);
    used_.resize(pages, 0);
    held_.resize(pages * places_per_page);
    for (std::size_t place = 0; place < held_.size(); ++place) vacant_.push_back(place);
    trace_.events.reserve(events + 4);
    while (trace_.events.size() < events) act();
    trace_.events.resize(events);
    replay_ends();
  }

  Trace take() { return std::move(trace_); }

 private:
  static constexpr std::uint64_t page = 2 << 20, place_size = 64 << 10;
  static constexpr std::size_t places_per_page = page / place_size;
  struct Held {
    TraceEvent allocate;
    BlockState state = BlockState::free;
  };

  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  bool chance(double share) { return static_cast<double>(random_() >> 11) * 0x1p-53 < share; }
  // Windows are 1 GiB apart; only the second follows the first without a gap.
  std::uint64_t address_of(std::size_t place) const {
    const std::size_t window = place / places_per_page / shape_.pages;
    const std::uint64_t base =
        window < 2 ? window * shape_.pages * page : window * (std::uint64_t{1} << 30) * (1 + shape_.pages / 512);
    return 0x7f0000000000 + base + (place - window * shape_.pages * places_per_page) * place_size;
  }

  TraceEvent& record(TraceKind kind, std::uint64_t address, std::uint64_t size) {
    TraceEvent& event = trace_.events.emplace_back();
    event.time = time_ += below(5000);
    event.kind = kind;
    event.address = address;
    event.size = size;
    event.stream = static_cast<std::uint32_t>(below(trace_.streams.size()));
    return event;
  }

  void act() {
    if (trace_.events.size() % 997 == 0) record(TraceKind::step, 0, steps_++);
    if (chance(0.002))
      record(TraceKind::stage, below(100000), below(page)).stage = static_cast<std::uint8_t>(below(14));
    if (chance(0.001)) record(TraceKind::out_of_memory, below(page), 64 * page);
    if (chance(0.001)) record(TraceKind::stream_order, 1, 0);
    if (!waiting_.empty() && chance(0.2)) complete(below(waiting_.size()));
    if (chance(0.01)) unmap(below(committed_.size()));
    if (live_.size() < shape_.live && (live_.empty() || chance(0.55)) && !vacant_.empty())
      allocate();
    else if (!live_.empty())
      free(below(live_.size()));
  }

  void allocate() {
    const std::size_t at = below(vacant_.size()), place = vacant_[at];
    vacant_[at] = vacant_.back();
    vacant_.pop_back();
    const std::size_t page_index = place / places_per_page;
    if (!committed_[page_index]) {
      committed_[page_index] = true;
      record(TraceKind::segment_map, address_of(page_index * places_per_page), page);
    }
    ++used_[page_index];
    const std::uint64_t size = chance(0.01) ? 0 : 1 + below(chance(0.5) ? 4096 : place_size);
    TraceEvent& event = record(TraceKind::allocate, address_of(place), size);
    event.slack = static_cast<std::uint32_t>(std::max<std::uint64_t>((size + 63) / 64 * 64, 64) - size);
    event.allocation = ++allocations_;
    event.category = static_cast<Category>(below(category_count));
    event.scope = static_cast<std::uint32_t>(below(trace_.scopes.size()));
    event.location = below(trace_.locations.size());
    event.ticket = allocations_ / 3;
    held_[place] = {event, BlockState::live};
    live_.push_back(place);
  }

  void free(std::size_t index) {
    const std::size_t place = live_[index];
    live_[index] = live_.back();
    live_.pop_back();
    end(TraceKind::free_requested, place);
    held_[place].state = BlockState::pending;
    waiting_.push_back(place);
    if (!chance(shape_.delayed)) complete(waiting_.size() - 1);
  }

  void complete(std::size_t index) {
    const std::size_t place = waiting_[index];
    waiting_[index] = waiting_.back();
    waiting_.pop_back();
    end(TraceKind::free_completed, place);
    held_[place].state = BlockState::free;
    vacant_.push_back(place);
    --used_[place / places_per_page];
  }

  void end(TraceKind kind, std::size_t place) {
    const TraceEvent& allocated = held_[place].allocate;
    TraceEvent& event = record(kind, allocated.address, allocated.size);
    event.slack = allocated.slack;
    event.allocation = allocated.allocation;
    event.category = allocated.category;
    event.scope = allocated.scope;
    event.ticket = allocations_ / 3;
  }

  void unmap(std::size_t page_index) {
    if (!committed_[page_index] || used_[page_index] != 0) return;
    committed_[page_index] = false;
    record(TraceKind::segment_unmap, address_of(page_index * places_per_page), page);
  }

  // Computes the end of the trace from its events alone: the last action may be incomplete.
  void replay_ends() {
    std::fill(committed_.begin(), committed_.end(), false);
    for (Held& held : held_) held.state = BlockState::free;
    const auto place_of = [&](std::uint64_t address) {
      std::size_t place = 0;
      const std::size_t per_window = shape_.pages * places_per_page;
      while (place + per_window < held_.size() && address_of(place + per_window) <= address) place += per_window;
      return place + static_cast<std::size_t>((address - address_of(place)) / place_size);
    };
    for (const TraceEvent& event : trace_.events) {
      switch (event.kind) {
        case TraceKind::segment_map: committed_[place_of(event.address) / places_per_page] = true; break;
        case TraceKind::segment_unmap: committed_[place_of(event.address) / places_per_page] = false; break;
        case TraceKind::allocate: held_[place_of(event.address)] = {event, BlockState::live}; break;
        case TraceKind::free_requested: held_[place_of(event.address)].state = BlockState::pending; break;
        case TraceKind::free_completed: held_[place_of(event.address)].state = BlockState::free; break;
        default: break;
      }
    }
    for (std::size_t place = 0; place < held_.size(); ++place) add_blocks(place);
  }

  void add_blocks(std::size_t place) {
    const std::size_t window = place / places_per_page / shape_.pages;
    BlockSnapshot block;
    block.address = address_of(place);
    block.size = place_size;
    block.window = window;
    const Held& held = held_[place];
    if (!committed_[place / places_per_page]) block.state = BlockState::uncommitted;
    if (held.state != BlockState::free) {
      block.state = held.state;
      block.size = held.allocate.size + held.allocate.slack;
      block.requested = held.allocate.size;
      block.number = held.allocate.allocation;
      block.stream = trace_.streams[held.allocate.stream];
      block.tag = {held.allocate.category, held.allocate.scope};
    }
    add(block);
    if (block.size < place_size) {
      BlockSnapshot rest;
      rest.address = block.address + block.size;
      rest.size = place_size - block.size;
      rest.window = window;
      add(rest);
    }
  }

  // Free and uncommitted neighbors are one block, as in a pool.
  void add(const BlockSnapshot& block) {
    const bool held = block.state == BlockState::live || block.state == BlockState::pending;
    if (!held && !trace_.blocks.empty()) {
      BlockSnapshot& last = trace_.blocks.back();
      if (last.state == block.state && last.window == block.window && last.address + last.size == block.address) {
        last.size += block.size;
        return;
      }
    }
    trace_.blocks.push_back(block);
  }

  std::mt19937_64 random_;
  SyntheticShape shape_;
  Trace trace_;
  std::uint64_t time_ = 0, steps_ = 0, allocations_ = 0;
  std::vector<bool> committed_;                       // by page
  std::vector<std::size_t> used_;                     // blocks in each page
  std::vector<Held> held_;                            // by place
  std::vector<std::size_t> vacant_, live_, waiting_;  // places
};

inline Trace synthetic_trace(std::uint64_t seed, std::size_t events, SyntheticShape shape = {}) {
  return SyntheticTrace(seed, events, shape).take();
}

/// Returns the trace of a ring that has overwritten the first `lost` events.
inline Trace without_beginning(Trace trace, std::size_t lost) {
  trace.events.erase(trace.events.begin(), trace.events.begin() + static_cast<std::ptrdiff_t>(lost));
  trace.lost += lost;
  return trace;
}

}  // namespace poolgrad::testing_support
