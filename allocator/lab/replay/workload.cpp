#include "allocator/lab/replay/workload.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "allocator/base/rounding.h"
#include "allocator/base/salted_map.h"
#include "allocator/error.h"
#include "allocator/lab/replay/model_device.h"

namespace poolgrad {

std::size_t Workload::peak_requested() const {
  std::size_t live = 0;
  std::size_t most = 0;
  for (const Operation& operation : operations) {
    if (operation.kind == OperationKind::allocate) most = std::max(most, live += operation.bytes);
    if (operation.kind == OperationKind::free) live -= operation.bytes;
  }
  return most;
}

std::size_t Workload::lower_bound() const { return round_up(peak_requested(), ModelDevice::page); }

namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 56;
constexpr std::size_t most_streams = 1024;
constexpr std::uint32_t nobody = UINT32_MAX;

/// Names the blocks of a trace by allocation number, or else by address.
class Importer {
 public:
  Importer(const Trace& trace, bool with_failed) : trace_(trace), with_failed_(with_failed) {}

  Workload run() {
    find_completions();
    if (trace_.events.size() > nobody - 1 - trace_.blocks.size()) refuse("too many events for a replay");
    for (index_ = 0; index_ < trace_.events.size(); ++index_) event(trace_.events[index_]);
    add_blocks_without_allocation();
    return assemble();
  }

 private:
  struct Block {
    std::uint64_t bytes = 0;
    std::uint64_t order = 0;  // of blocks before the trace: by allocation number, then by appearance
    std::uint16_t stream = 0;
    Category category = Category::unknown;
    std::uint8_t alignment = 0;
    bool sized = false;  // a use does not give the size of the block
    bool before = false;
    bool live = true;
    bool used = false;
  };

  [[noreturn]] void refuse(const std::string& reason) const {
    throw ValueError("[workload_of] " + reason + " (event " + std::to_string(index_) + " of " +
                     std::to_string(trace_.events.size()) + ")");
  }

  /// For each free_requested, finds the event that completes it; 0 if there is none, or it is the next event.
  void find_completions() {
    SaltedMap<std::size_t> open;
    completions_.assign(trace_.events.size(), 0);
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      const TraceEvent& e = trace_.events[i];
      if (e.kind == TraceKind::allocate) open.erase(e.address);
      if (e.kind == TraceKind::free_requested) open[e.address] = i;
      if (e.kind != TraceKind::free_completed) continue;
      const auto request = open.find(e.address);
      if (request == open.end()) continue;
      if (i > request->second + 1) completions_[request->second] = i;
      open.erase(request);
    }
  }

  std::uint16_t stream(std::uint64_t index) {
    if (index >= std::max<std::size_t>(trace_.streams.size(), 1)) {
      refuse("stream " + std::to_string(index) + " of " + std::to_string(trace_.streams.size()));
    }
    const auto [known, added] = streams_.try_emplace(index, static_cast<std::uint16_t>(streams_.size()));
    if (streams_.size() > most_streams) refuse("more than " + std::to_string(most_streams) + " streams");
    return known->second;
  }

  std::uint32_t make(const Block& block, std::uint64_t number, std::uint64_t address) {
    const auto name = static_cast<std::uint32_t>(blocks_.size());
    blocks_.push_back(block);
    if (number != 0) by_number_[number] = name;
    by_address_[address] = name;
    return name;
  }

  std::uint32_t find(std::uint64_t number, std::uint64_t address) const {
    const auto& names = number != 0 ? by_number_ : by_address_;
    const auto known = names.find(number != 0 ? number : address);
    return known == names.end() ? nobody : known->second;
  }

  /// Adds a block that existed before the trace.
  std::uint32_t make_before(const TraceEvent& e, std::uint16_t on) {
    return make({.order = e.allocation, .stream = on, .category = e.category, .before = true}, e.allocation, e.address);
  }

  void add(OperationKind kind, std::uint32_t block, std::uint16_t on) {
    add({.block = block, .stream = on, .kind = kind});
  }
  void add(Operation operation) {
    operation.think = static_cast<std::uint32_t>(std::min<std::uint64_t>(std::exchange(think_, 0), UINT32_MAX));
    operations_.push_back(operation);
  }

  void check_size(std::uint64_t bytes, std::uint8_t alignment = 0) const {
    if (bytes > most_bytes) refuse("a block of " + std::to_string(bytes) + " bytes");
    if (alignment >= 64) refuse("an alignment of 2^" + std::to_string(alignment));
  }

  void event(const TraceEvent& e) {
    if (e.time > now_) {
      think_ += e.time - now_;
      now_ = e.time;
    }
    const auto category = static_cast<std::size_t>(e.category);
    if (category >= category_count) refuse("unknown category " + std::to_string(category));
    switch (e.kind) {
      case TraceKind::allocate: allocate(e); break;
      case TraceKind::free_requested: free(e); break;
      case TraceKind::free_completed:
        if (const auto due = held_.find(index_); due != held_.end()) add(due->second);
        break;
      case TraceKind::stream_use: use(e); break;
      case TraceKind::stream_order: add(OperationKind::order, stream(e.address), stream(e.stream)); break;
      case TraceKind::step: add(OperationKind::step, 0, 0); break;
      case TraceKind::segment_map:
      case TraceKind::segment_unmap:
      case TraceKind::stage: break;
      case TraceKind::out_of_memory:
        if (with_failed_) fail(e);
        break;
      default: refuse("unknown kind " + std::to_string(static_cast<unsigned>(e.kind)));
    }
  }

  void allocate(const TraceEvent& e) {
    check_size(e.size, e.flags);
    const std::uint32_t known = find(e.allocation, e.address);
    if (known != nobody && (e.allocation != 0 || blocks_[known].live)) {
      refuse(e.allocation != 0 ? "allocation " + std::to_string(e.allocation) + " happens twice"
                               : "address " + std::to_string(e.address) + " is allocated while it is live");
    }
    const std::uint16_t on = stream(e.stream);
    const std::uint32_t name =
        make({.bytes = e.size, .stream = on, .category = e.category, .alignment = e.flags, .sized = true}, e.allocation,
             e.address);
    add(OperationKind::allocate, name, on);
  }

  /// A failed request has no address.
  void fail(const TraceEvent& e) {
    check_size(e.size, e.flags);
    const std::uint16_t on = stream(e.stream);
    const auto name = static_cast<std::uint32_t>(blocks_.size());
    blocks_.push_back(
        {.bytes = e.size, .stream = on, .category = e.category, .alignment = e.flags, .sized = true, .live = false});
    add(OperationKind::allocate, name, on);
    add(OperationKind::free, name, on);
  }

  void free(const TraceEvent& e) {
    check_size(e.size);
    const std::uint16_t on = stream(e.stream);
    std::uint32_t name = find(e.allocation, e.address);
    if (name == nobody) name = make_before(e, on);
    Block& block = blocks_[name];
    if (!block.live) refuse("a block is freed twice");
    if (!block.sized) block.bytes = e.size;
    block.sized = true;
    block.live = false;
    const Operation given_back{.block = name, .stream = on, .kind = OperationKind::free};
    // Held later for a stream that the trace does not name: equivalent to a later free.
    const bool held = completions_[index_] != 0 && !block.used && on == block.stream;
    if (held) {
      held_.emplace(completions_[index_], given_back);
    } else {
      add(given_back);
    }
  }

  void use(const TraceEvent& e) {
    const std::uint16_t on = stream(e.stream);
    std::uint32_t name = find(e.allocation, e.address);
    if (name == nobody) name = make_before(e, on);
    if (!blocks_[name].live) refuse("a stream uses a block that was freed");
    blocks_[name].used = true;
    add(OperationKind::use, name, on);
  }

  void add_blocks_without_allocation() {
    SaltedMap<std::size_t> indices;
    for (std::size_t i = 0; i < trace_.streams.size(); ++i) indices.try_emplace(trace_.streams[i], i);
    for (const BlockSnapshot& known : trace_.blocks) {
      if (known.state != BlockState::live) continue;
      check_size(known.requested);
      std::uint32_t name = find(known.number, known.address);
      if (name == nobody) name = find(0, known.address);
      if (name != nobody && blocks_[name].live) {
        Block& block = blocks_[name];
        if (!block.sized) block.bytes = known.requested;
        block.sized = true;
        continue;
      }
      if (name != nobody && known.number == 0) refuse("a block is live at the end though it was freed");
      const auto index = indices.find(known.stream);
      const bool has_category = static_cast<std::size_t>(known.tag.category) < category_count;
      make({.bytes = known.requested,
            .order = known.number,
            .stream = index != indices.end() ? stream(index->second) : std::uint16_t{0},
            .category = has_category ? known.tag.category : Category::unknown,
            .sized = true,
            .before = true},
           known.number, known.address);
    }
  }

  /// Numbers all blocks by allocation order; blocks from before the trace come first.
  Workload assemble() {
    std::vector<std::uint32_t> before;
    for (std::uint32_t name = 0; name < blocks_.size(); ++name) {
      if (blocks_[name].before && blocks_[name].sized) before.push_back(name);
    }
    std::ranges::stable_sort(before, {}, [&](std::uint32_t name) { return blocks_[name].order; });
    Workload workload;
    workload.streams = static_cast<std::uint16_t>(std::max<std::size_t>(streams_.size(), 1));
    std::vector<std::uint32_t> names(blocks_.size(), nobody);
    std::uint64_t live = 0;
    const auto append = [&](Operation operation) {
      if (operation.kind != OperationKind::order && operation.kind != OperationKind::step) {
        const Block& block = blocks_[operation.block];
        if (!block.sized) return;
        std::uint32_t& name = names[operation.block];
        if (operation.kind == OperationKind::allocate) name = workload.blocks++;
        operation.block = name;
        operation.bytes = block.bytes;
        operation.category = block.category;
        operation.alignment = block.alignment;
        if (operation.kind == OperationKind::allocate && (live += operation.bytes) > most_bytes) {
          refuse("more than " + std::to_string(most_bytes) + " live bytes");
        }
        if (operation.kind == OperationKind::free) live -= operation.bytes;
      }
      workload.operations.push_back(operation);
    };
    for (const std::uint32_t name : before) append({.block = name, .stream = blocks_[name].stream});
    for (const Operation& operation : operations_) append(operation);
    return workload;
  }

  const Trace& trace_;
  const bool with_failed_;
  std::size_t index_ = 0;
  std::uint64_t now_ = 0;
  std::uint64_t think_ = 0;
  std::vector<std::size_t> completions_;
  SaltedMap<Operation> held_;  // frees, by the event at which they take effect
  SaltedMap<std::uint16_t> streams_;
  SaltedMap<std::uint32_t> by_number_;
  SaltedMap<std::uint32_t> by_address_;
  std::vector<Block> blocks_;
  std::vector<Operation> operations_;
};

}  // namespace

Workload workload_of(const Trace& trace, const std::string& name, bool with_failed) {
  Workload workload = Importer(trace, with_failed).run();
  workload.name = name;
  workload.description = std::to_string(trace.events.size()) + " recorded events on " + to_string(trace.device);
  return workload;
}

void WorkloadBuilder::add(OperationKind kind, std::uint16_t stream, Operation allocation) {
  workload_.streams = std::max<std::uint16_t>(workload_.streams, static_cast<std::uint16_t>(stream + 1));
  allocation.kind = kind;
  allocation.stream = stream;
  allocation.think = think_;
  workload_.operations.push_back(allocation);
}

std::uint32_t WorkloadBuilder::allocate(std::uint64_t bytes, Category category, std::uint16_t stream) {
  add(OperationKind::allocate, stream, {.bytes = bytes, .block = workload_.blocks, .category = category});
  blocks_.push_back(workload_.operations.back());
  return workload_.blocks++;
}

void WorkloadBuilder::order(std::uint16_t later, std::uint16_t earlier) {
  add(OperationKind::order, std::max(later, earlier), {.block = earlier});
  workload_.operations.back().stream = later;
}

Workload WorkloadBuilder::take(std::string_view name, std::string_view description) {
  workload_.name = name;
  workload_.description = description;
  blocks_.clear();
  return std::exchange(workload_, {});
}

}  // namespace poolgrad
