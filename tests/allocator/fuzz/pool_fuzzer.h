// Runs a script on a pool and on its shadow, and reports the first difference. The pool's type is a parameter, so
// deliberately broken pools can be run too.
#pragma once

#include <cstring>
#include <exception>
#include <string>

#include "tests/allocator/fuzz/operation.h"
#include "tests/allocator/fuzz/room.h"
#include "tests/allocator/fuzz/setup.h"
#include "tests/allocator/fuzz/worker_threads.h"

namespace poolgrad::testing {

template <class PoolType = CachingAllocator>
class PoolFuzzer {
 public:
  explicit PoolFuzzer(const PoolSetup& setup)
      : setup_(setup),
        device_(make_device(setup)),
        shadow_(device_.watch->clocks()),
        pool_(std::make_unique<PoolType>(std::move(device_.memory), setup.config)) {
    budget_ = setup.config.budget == 0 ? setup.capacity : setup.config.budget;
    device_.watch->set_limit(budget_);
    device_.watch->before_release = [this](std::uintptr_t start, std::size_t bytes) {
      return shadow_.release(start, start + bytes);
    };
  }

  /// Returns the first error, or "" if there is none. Frees all blocks and the pool at the end.
  std::string run(const Script& script) {
    for (std::size_t i = 0; i < script.size(); ++i) {
      const std::string wrong = step(script[i]);
      if (!wrong.empty()) return "operation " + std::to_string(i) + " (" + to_string(script[i]) + "): " + wrong;
    }
    const std::string wrong = drain();
    return wrong.empty() ? "" : "when all is given back: " + wrong;
  }

  /// The number of granted and refused allocations.
  std::size_t granted() const { return granted_; }
  std::size_t refused() const { return refused_; }
  /// The number of device calls that could have failed, at the time the pool was destroyed.
  std::uint64_t calls() const { return calls_; }

 private:
  using Kind = Operation::Kind;

  std::string step(const Operation& operation) {
    if (operation.kind == Kind::end_thread) {
      threads_.end(operation.thread);
      return "";
    }
    std::string wrong;
    threads_.run(operation.thread, [&] {
      const std::uint64_t calls = device_.failing->calls();
      std::string thrown;
      try {
        wrong = apply(operation);
      } catch (const std::exception& error) {
        thrown = error.what();
      }
      if (!thrown.empty() && !failed_since(calls)) wrong = "throws: " + thrown;
    });
    if (wrong.empty()) wrong = device_.watch->violation();
    if (wrong.empty() && pool_->budget() != budget_) wrong = "budget() is not what it was set to";
    return wrong;
  }

  std::string apply(const Operation& operation) {
    switch (operation.kind) {
      case Kind::allocate: return allocate(operation);
      case Kind::free: return free(operation);
      case Kind::expand: return expand(operation);
      case Kind::use: return use(operation);
      case Kind::order:
        if (operation.stream == operation.slot) return "";
        pool_->order(stream(operation.stream), stream(operation.slot));
        return "";
      case Kind::stream_destroyed:
        if (!clocks().exists(operation.stream)) return "";
        pool_->stream_destroyed(Stream{pool_->device(), operation.stream});
        clocks().destroy(operation.stream);
        for (auto& [slot, block] : shadow_.blocks())
          block.orphaned = block.orphaned || block.stream == operation.stream;
        return "";
      case Kind::trim: return trim(operation.bytes);
      case Kind::set_budget: return set_budget(operation.bytes);
      case Kind::begin_step: return pool_->begin_step(), "";
      case Kind::finish_events:
        if (device_.delayed != nullptr) device_.delayed->finish_events();
        return "";
      case Kind::fail_call:
        failing_call_ = device_.failing->calls() + operation.bytes;
        device_.failing->fail_call(failing_call_);
        return "";
      case Kind::verify: return verify();
      case Kind::end_thread: break;
    }
    return "";
  }

  std::string allocate(const Operation& operation) {
    if (shadow_.blocks().contains(operation.slot)) return "";
    const std::uint64_t calls = device_.failing->calls();
    ++requests_;
    const auto result = pool_->try_allocate({.bytes = operation.bytes,
                                             .alignment = operation.alignment,
                                             .stream = stream(operation.stream),
                                             .tag = {operation.category, 0}});
    void* const* pointer = std::get_if<void*>(&result);
    if (pointer == nullptr) {
      ++refused_;
      if (failed_since(calls)) return "";
      const std::size_t alignment = std::max(operation.alignment, setup_.config.alignment);
      const std::size_t bytes = (std::max<std::size_t>(operation.bytes, 1) + alignment - 1) / alignment * alignment;
      const auto room =
          bytes < operation.bytes ? std::nullopt : room_for(bytes, alignment, limit(), shadow_, *device_.watch);
      return room ? "refused although it fits " + *room + "\n" + std::get<std::string>(result) : "";
    }
    ++granted_;
    ShadowBlock block{.address = reinterpret_cast<std::uintptr_t>(*pointer),
                      .bytes = operation.bytes,
                      .extent = *pointer == nullptr ? 0 : pool_->usable_size(*pointer),
                      .alignment = operation.alignment,
                      .stream = operation.stream,
                      .category = operation.category,
                      .pattern = static_cast<unsigned char>(granted_ % 251 + 1),
                      .lines = {},
                      .uses = {}};
    std::string wrong = check_extent(block, block.bytes, block.extent);
    if (wrong.empty() && block.address % std::max(block.alignment, setup_.config.alignment) != 0)
      wrong = "the block is not aligned";
    if (wrong.empty()) wrong = shadow_.add(operation.slot, block);
    if (wrong.empty()) write(block);
    return wrong;
  }

  std::string check_extent(const ShadowBlock& block, std::size_t bytes, std::size_t extent) const {
    if (block.address == 0) return "the pointer is null";
    if (extent < std::max<std::size_t>(bytes, 1)) return "usable_size() is less than what was asked for";
    const std::size_t granule = std::max<std::size_t>(512, setup_.config.alignment);
    if (setup_.config.mode != AllocatorMode::none && extent - bytes > granule - (bytes == 0 ? 0 : 1))
      return "the block wastes " + std::to_string(extent - bytes) + " bytes";
    if (!device_.watch->is_committed(block.address, extent)) return "there is no memory behind the block";
    return "";
  }

  std::string free(const Operation& operation) {
    const auto entry = shadow_.blocks().find(operation.slot);
    if (entry == shadow_.blocks().end()) return "";
    const ShadowBlock block = entry->second;
    if (!intact(block)) return "the bytes of the block have changed";
    const std::uint32_t id = operation.stream == Operation::own_stream ? block.stream : operation.stream;
    // A block that outlived its stream may be freed under the stream's name; that free starts no new work.
    const bool outlived = block.orphaned && clocks().destroyed(id);
    const Stream on = outlived ? Stream{pool_->device(), id} : stream(id);
    if (setup_.detect_races && !outlived && id != block.stream) pool_->order(on, stream(block.stream));
    // The shadow forgets the block first, because the pool may release its pages at once.
    shadow_.remove(operation.slot, id);
    pool_->deallocate(reinterpret_cast<void*>(block.address), block.bytes, block.alignment, on);
    return "";
  }

  std::string expand(const Operation& operation) {
    const auto entry = shadow_.blocks().find(operation.slot);
    if (entry == shadow_.blocks().end()) return "";
    ShadowBlock& block = entry->second;
    void* pointer = reinterpret_cast<void*>(block.address);
    const bool shrinks = operation.bytes <= block.bytes;
    const std::uint64_t calls = device_.failing->calls();
    if (!intact(block)) return "the bytes of the block have changed";
    const bool done = pool_->expand_in_place(pointer, block.bytes, operation.bytes, stream(block.stream));
    // The pool cannot free a part of a block that other streams use or whose stream is destroyed.
    if (!done && shrinks && block.uses.empty() && !block.orphaned && !failed_since(calls))
      return "a block cannot be made smaller";
    const std::size_t extent = pool_->usable_size(pointer);
    if (!done) return extent == block.extent ? "" : "usable_size() changed though nothing was to change";
    ++expanded_;
    std::string wrong = check_extent(block, operation.bytes, extent);
    const std::size_t kept = std::min(block.bytes, operation.bytes);
    if (wrong.empty() && has_bytes() && !intact(block, kept)) wrong = "the bytes of the block have changed";
    if (wrong.empty()) wrong = shadow_.resize(operation.slot, operation.bytes, extent);
    if (wrong.empty()) write(block);
    return wrong;
  }

  std::string use(const Operation& operation) {
    const auto entry = shadow_.blocks().find(operation.slot);
    if (entry == shadow_.blocks().end()) return "";
    if (setup_.detect_races && operation.stream != entry->second.stream)
      pool_->order(stream(operation.stream), stream(entry->second.stream));
    pool_->use(reinterpret_cast<void*>(entry->second.address), stream(operation.stream));
    entry->second.uses.push_back(clocks().use(operation.stream));
    return "";
  }

  std::string trim(std::size_t bytes) {
    const std::uint64_t calls = device_.failing->calls();
    const std::size_t before = device_.watch->committed();
    const std::size_t released = pool_->trim(bytes);
    if (released != before - device_.watch->committed()) return "trim() does not return the bytes released";
    if (released >= bytes || failed_since(calls)) return "";
    return device_.watch->committed() <= held_bytes() ? "" : "trim() leaves pages that hold nothing";
  }

  std::string set_budget(std::size_t bytes) {
    const std::uint64_t calls = device_.failing->calls();
    const std::size_t wanted = bytes == 0 ? setup_.capacity : bytes;
    device_.watch->set_limit(std::max(budget_, wanted));
    bool refused = false;
    try {
      pool_->set_budget(bytes);
      budget_ = wanted;
    } catch (const ValueError&) {
      refused = true;
    }
    device_.watch->set_limit(budget_);
    if (refused && !failed_since(calls) && PinnedMemory(shadow_, *device_.watch).bytes() <= wanted)
      return "a budget is refused though what is live fits";
    if (!refused && device_.watch->committed() > wanted) return "more is reserved than the new budget";
    return "";
  }

  // Bytes of committed pieces that hold a live or pending block.
  std::size_t held_bytes() const {
    std::size_t bytes = 0;
    std::map<std::uintptr_t, std::uintptr_t> held;
    for (const BlockSnapshot& block : pool_->snapshot()) {
      if (block.state == BlockState::live || block.state == BlockState::pending)
        held[block.address] = block.address + block.size;
    }
    for (const auto& [start, end] : device_.watch->pieces()) {
      const auto after = held.lower_bound(end);
      if (after != held.begin() && std::prev(after)->second > start) bytes += end - start;
    }
    return bytes;
  }

  std::string verify() {
    const Statistics statistics = pool_->statistics();
    const auto blocks = pool_->snapshot();
    std::size_t live = 0;
    std::size_t live_blocks = 0;
    std::size_t pending = 0;
    std::size_t cached = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const BlockSnapshot& block = blocks[i];
      const std::string at = " at byte " + std::to_string(block.address - blocks[0].address);
      const bool hole = block.state == BlockState::uncommitted;
      if (block.size == 0) return "an empty block" + at;
      if (block.state == BlockState::busy) return "a block is busy though nobody is at work" + at;
      if (!hole && !device_.watch->is_committed(block.address, block.size)) return "no memory behind a block" + at;
      if (block.state == BlockState::live) {
        live += block.size;
        ++live_blocks;
        const auto entry = shadow_.live().find(block.address);
        if (entry == shadow_.live().end()) return "a live block that was never handed out" + at;
        const ShadowBlock& known = shadow_.blocks().at(entry->second);
        if (block.size != known.extent || block.requested != known.bytes) return "a live block of another size" + at;
        if (setup_.config.mode != AllocatorMode::lightweight && block.tag.category != known.category)
          return "a live block of another category" + at;
      } else if (block.state == BlockState::pending) {
        pending += block.size;
      } else if (!hole) {
        cached += block.size;
      }
      if (i == 0 || blocks[i - 1].window != block.window) continue;
      const BlockSnapshot& previous = blocks[i - 1];
      if (previous.address + previous.size != block.address) return "blocks do not tile their window" + at;
      if (hole && previous.state == BlockState::uncommitted) return "two neighbouring holes" + at;
      if (block.state == BlockState::free && previous.state == BlockState::free && block.stream == previous.stream)
        return "two free neighbours of one stream" + at;
    }
    if (live_blocks != shadow_.live().size()) return "live blocks are missing in the snapshot";
    if (live + pending + cached != device_.watch->committed()) return "blocks do not add up to the committed bytes";
    if (statistics.allocated_bytes.current != live) return "allocated_bytes is not the sum of live blocks";
    if (statistics.active_bytes.current != live + pending) return "active_bytes is not live + pending";
    if (statistics.reserved_bytes.current != device_.watch->committed())
      return "reserved_bytes is not what is committed";
    if (statistics.reserved_bytes.peak < device_.watch->most_committed())
      return "the peak of reserved_bytes is too low";
    if (statistics.requested_bytes.current != shadow_.requested()) return "requested_bytes is not what is live";
    // A block that was expanded may count as one more request.
    if (statistics.requests != requests_ && statistics.requests != requests_ + expanded_)
      return "requests is not the number of allocations asked for";
    if (statistics.num_ooms > refused_) return "num_ooms is more than the number of refusals";
    for (std::size_t i = 0; i < category_count && setup_.config.mode != AllocatorMode::lightweight; ++i) {
      if (statistics.category_bytes[i].current != shadow_.requested(static_cast<Category>(i)))
        return "category_bytes of " + std::string(to_string(static_cast<Category>(i))) + " is wrong";
    }
    return "";
  }

  std::string drain() {
    device_.failing->fail_call(0, 0);
    std::string wrong;
    while (wrong.empty() && !shadow_.blocks().empty()) {
      const std::uint32_t slot = shadow_.blocks().begin()->first;
      wrong = step({.kind = Kind::free, .slot = slot, .stream = Operation::own_stream});
    }
    if (wrong.empty()) wrong = step({.kind = Kind::finish_events});
    if (wrong.empty()) wrong = step({.kind = Kind::trim, .bytes = SIZE_MAX});
    if (wrong.empty()) wrong = step({.kind = Kind::verify});
    if (wrong.empty() && device_.watch->committed() != 0)
      wrong = std::to_string(device_.watch->committed()) + " bytes stay reserved";
    if (!wrong.empty()) return wrong;
    std::size_t windows = 0;
    std::size_t events = 0;
    device_.watch->at_end = [&](const WatchingMemory& watch) {
      wrong = watch.violation();
      windows = watch.windows().size();
      events = watch.open_events();
    };
    calls_ = device_.failing->calls();
    pool_.reset();
    if (wrong.empty() && windows != 0) wrong = "addresses stay reserved after the pool is gone";
    if (wrong.empty() && events != 0) wrong = std::to_string(events) + " events are left over after the pool is gone";
    return wrong;
  }

  bool has_bytes() const { return setup_.device != "sim" && setup_.device != "other"; }
  static std::size_t stride(std::size_t bytes) { return bytes < 4096 ? 61 : bytes < 65536 ? 4093 : 65519; }
  void write(const ShadowBlock& block) const {
    if (!has_bytes() || block.bytes == 0) return;
    auto* bytes = reinterpret_cast<unsigned char*>(block.address);
    for (std::size_t i = 0; i < block.bytes; i += stride(block.bytes)) bytes[i] = block.pattern;
    bytes[block.bytes - 1] = block.pattern;
  }
  bool intact(const ShadowBlock& block) const { return intact(block, block.bytes); }
  bool intact(const ShadowBlock& block, std::size_t kept) const {
    if (!has_bytes() || block.bytes == 0) return true;
    const auto* bytes = reinterpret_cast<const unsigned char*>(block.address);
    for (std::size_t i = 0; i < kept; i += stride(block.bytes)) {
      if (bytes[i] != block.pattern) return false;
    }
    return kept < block.bytes || bytes[block.bytes - 1] == block.pattern;
  }

  StreamClocks& clocks() { return device_.watch->clocks(); }
  Stream stream(std::uint32_t id) {
    clocks().line_of(id);
    return Stream{pool_->device(), id};
  }
  std::size_t limit() const { return std::min(budget_, setup_.capacity); }
  bool failed_since(std::uint64_t calls) const {
    return calls < failing_call_ && failing_call_ <= device_.failing->calls();
  }

  PoolSetup setup_;
  WatchedDevice device_;
  Shadow shadow_;
  std::unique_ptr<PoolType> pool_;
  WorkerThreads threads_;
  std::size_t budget_ = 0;
  std::uint64_t failing_call_ = 0;
  std::uint64_t calls_ = 0;
  std::size_t granted_ = 0;
  std::size_t refused_ = 0;
  std::size_t requests_ = 0;
  std::size_t expanded_ = 0;
};

}  // namespace poolgrad::testing
