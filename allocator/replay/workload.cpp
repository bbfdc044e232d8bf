#include "allocator/replay/workload.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "allocator/error.h"

namespace poolgrad {

std::size_t Workload::lower_bound() const {
  std::size_t live = 0;
  std::size_t most = 0;
  for (const Operation& operation : operations) {
    if (operation.kind == OperationKind::allocate) most = std::max(most, live += operation.bytes);
    if (operation.kind == OperationKind::free) live -= operation.bytes;
  }
  return most;
}

namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 56;
constexpr std::size_t most_streams = 1024;
constexpr std::uint32_t nobody = UINT32_MAX;

/// Names the blocks of a trace: by the number of their allocation where there is one, else by address.
class Importer {
 public:
  explicit Importer(const Trace& trace) : trace_(trace) {}

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
    std::uint64_t order = 0;  // of those before the trace: by allocation number, then by appearance
    std::uint16_t stream = 0;
    Category category = Category::unknown;
    bool sized = false;  // a use does not say how large the block is
    bool before = false;
    bool live = true;
    bool used = false;
  };

  [[noreturn]] void refuse(const std::string& reason) const {
    throw ValueError("[workload_of] " + reason + " (event " + std::to_string(index_) + " of " +
                     std::to_string(trace_.events.size()) + ")");
  }

  /// For each free_requested, the event that completes it; 0 if none does, or the next event does.
  void find_completions() {
    std::unordered_map<std::uint64_t, std::size_t> open;
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
    if (number != 0) {
      const auto known = by_number_.find(number);
      return known == by_number_.end() ? nobody : known->second;
    }
    const auto known = by_address_.find(address);
    return known == by_address_.end() ? nobody : known->second;
  }

  /// A block that was there before the trace began.
  std::uint32_t make_before(const TraceEvent& e, std::uint16_t on) {
    Block block;
    block.order = e.allocation;
    block.stream = on;
    block.category = e.category;
    block.before = true;
    return make(block, e.allocation, e.address);
  }

  void add(OperationKind kind, std::uint32_t block, std::uint16_t on, std::size_t due = 0) {
    Operation operation;
    operation.kind = kind;
    operation.block = block;
    operation.stream = on;
    operation.think = static_cast<std::uint32_t>(std::min<std::uint64_t>(think_, UINT32_MAX));
    think_ = 0;
    if (due == 0) {
      operations_.push_back(operation);
    } else {
      operation.think = 0;
      held_.emplace(due, operation);
    }
  }

  void check_size(std::uint64_t bytes) const {
    if (bytes > most_bytes) refuse("a block of " + std::to_string(bytes) + " bytes");
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
        if (const auto due = held_.find(index_); due != held_.end()) operations_.push_back(due->second);
        break;
      case TraceKind::stream_use: use(e); break;
      case TraceKind::stream_order: add(OperationKind::order, stream(e.address), stream(e.stream)); break;
      case TraceKind::step: add(OperationKind::step, 0, 0); break;
      case TraceKind::segment_map:
      case TraceKind::segment_unmap:
      case TraceKind::rung:
      case TraceKind::out_of_memory: break;
      default: refuse("unknown kind " + std::to_string(static_cast<unsigned>(e.kind)));
    }
  }

  void allocate(const TraceEvent& e) {
    check_size(e.size);
    const std::uint32_t known = find(e.allocation, e.address);
    if (known != nobody && (e.allocation != 0 || blocks_[known].live)) {
      refuse(e.allocation != 0 ? "allocation " + std::to_string(e.allocation) + " happens twice"
                               : "address " + std::to_string(e.address) + " is handed out while it is live");
    }
    Block block;
    block.bytes = e.size;
    block.sized = true;
    block.stream = stream(e.stream);
    block.category = e.category;
    const std::uint32_t name = make(block, e.allocation, e.address);
    add(OperationKind::allocate, name, block.stream);
  }

  void free(const TraceEvent& e) {
    check_size(e.size);
    const std::uint16_t on = stream(e.stream);
    std::uint32_t name = find(e.allocation, e.address);
    if (name == nobody) name = make_before(e, on);
    Block& block = blocks_[name];
    if (!block.live) refuse("a block is given back twice");
    if (!block.sized) block.bytes = e.size;
    block.sized = true;
    block.live = false;
    // Held after that for a stream which the trace does not name: as good as given back later.
    const bool held = completions_[index_] != 0 && !block.used && on == block.stream;
    add(OperationKind::free, name, on, held ? completions_[index_] : 0);
  }

  void use(const TraceEvent& e) {
    const std::uint16_t on = stream(e.stream);
    std::uint32_t name = find(e.allocation, e.address);
    if (name == nobody) name = make_before(e, on);
    if (!blocks_[name].live) refuse("a stream uses a block that was given back");
    blocks_[name].used = true;
    add(OperationKind::use, name, on);
  }

  void add_blocks_without_allocation() {
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
      if (name != nobody && known.number == 0) refuse("a block is live at the end though it was given back");
      const auto id = std::ranges::find(trace_.streams, known.stream);
      Block block;
      block.bytes = known.requested;
      block.order = known.number;
      block.sized = true;
      block.before = true;
      block.stream = id == trace_.streams.end() ? std::uint16_t{0}
                                                : stream(static_cast<std::uint64_t>(id - trace_.streams.begin()));
      block.category =
          static_cast<std::size_t>(known.tag.category) < category_count ? known.tag.category : Category::unknown;
      make(block, known.number, known.address);
    }
  }

  /// Blocks from before the trace come first; all are numbered anew, in order of allocation.
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
      const bool of_block = operation.kind != OperationKind::order && operation.kind != OperationKind::step;
      if (of_block) {
        const std::uint32_t name = operation.block;
        if (!blocks_[name].sized) return;
        if (operation.kind == OperationKind::allocate) names[name] = workload.blocks++;
        operation.block = names[name];
        operation.bytes = blocks_[name].bytes;
        operation.category = blocks_[name].category;
        if (operation.kind == OperationKind::allocate && (live += operation.bytes) > most_bytes) {
          refuse("more than " + std::to_string(most_bytes) + " live bytes");
        }
        if (operation.kind == OperationKind::free) live -= operation.bytes;
      }
      workload.operations.push_back(operation);
    };
    for (const std::uint32_t name : before) {
      Operation operation;
      operation.block = name;
      operation.stream = blocks_[name].stream;
      append(operation);
    }
    for (const Operation& operation : operations_) append(operation);
    return workload;
  }

  const Trace& trace_;
  std::size_t index_ = 0;
  std::uint64_t now_ = 0;
  std::uint64_t think_ = 0;
  std::vector<std::size_t> completions_;
  std::unordered_map<std::size_t, Operation> held_;  // frees, by the event at which they happen
  std::unordered_map<std::uint64_t, std::uint16_t> streams_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_number_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_address_;
  std::vector<Block> blocks_;
  std::vector<Operation> operations_;
};

}  // namespace

Workload workload_of(const Trace& trace, const std::string& name) {
  Workload workload = Importer(trace).run();
  workload.name = name;
  workload.description = std::to_string(trace.events.size()) + " recorded events on " + to_string(trace.device);
  return workload;
}

}  // namespace poolgrad
