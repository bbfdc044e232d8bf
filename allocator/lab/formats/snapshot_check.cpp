#include "allocator/lab/formats/trace_file.h"

#include <algorithm>
#include <map>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "allocator/lab/formats/value_tree.h"

namespace poolgrad {

namespace {

constexpr std::uint64_t largest_number = std::uint64_t{1} << 53;
constexpr std::size_t most_violations = 100;

struct HeldBlock {
  std::uint64_t end = 0;
  bool waits = false;  // for another stream
};
struct LiveSegment {
  std::uint64_t end = 0;
  std::uint64_t stream = 0;
};

// The state of one device, from the last entry to the first.
struct Device {
  std::map<std::uint64_t, LiveSegment> segments;
  std::map<std::uint64_t, HeldBlock> blocks;
};

/// A range of `map` that overlaps [begin, end), or map.end().
template <typename Map>
typename Map::iterator overlapping(Map& map, std::uint64_t begin, std::uint64_t end) {
  auto at = map.lower_bound(end);
  if (at == map.begin()) return map.end();
  --at;
  return at->second.end > begin ? at : map.end();
}

class SnapshotChecker {
 public:
  SnapshotChecker(ValueTree& tree, const std::string& path) : tree_(tree), in_(tree, path) {}

  std::vector<std::string> check() {
    if (tree_.protocol > 4) report("pickle protocol " + std::to_string(tree_.protocol) + ", viewers know 2 to 4");
    if (tree_.longest_batch > 1000)
      report("a batch of " + std::to_string(tree_.longest_batch) + " items, at most 1000");
    const Value root = tree_.root;
    if (root.kind != ValueKind::dict) in_.fail("a snapshot is a dictionary");
    const Value* segments = in_.find(root, "segments");
    const Value* traces = in_.find(root, "device_traces");
    if (segments == nullptr || traces == nullptr) in_.fail("no 'segments' or no 'device_traces'");

    in_.for_each(*segments, "segments",
                 [&](Value segment, std::size_t index) { guarded([&] { check_segment(segment, index); }); });
    in_.for_each(*traces, "device_traces",
                 [&](Value trace, std::size_t index) { check_trace(in_.list(trace, "device_traces"), index); });
    if (has_category_ && !has_unknown_) report("entries have categories, but none has 'unknown'");
    return std::move(violations_);
  }

 private:
  void report(const std::string& violation) { add(to_string(in_.at) + ": " + violation); }
  void add(std::string line) {
    if (violations_.size() < most_violations) violations_.push_back(std::move(line));
  }
  // Reports an unreadable element as a violation, and continues with the next ones.
  template <typename Action>
  void guarded(Action action) {
    try {
      action();
    } catch (const FileError& error) {
      add(error.what());
    }
  }

  std::uint64_t number(Value dict, const char* key) {
    const std::uint64_t value = in_.number(dict, key);
    if (value > largest_number) report("'" + std::string(key) + "' is above 2^53");
    return value;
  }

  void check_frames(Value dict) {
    const Value* frames = in_.frames(dict);
    if (frames == nullptr || !tree_.first_visit(*frames)) return;
    for (const Value item : std::as_const(tree_).items(*frames)) {
      const Value frame = in_.dictionary(item);
      in_.text(frame, "name");
      in_.text(frame, "filename");
      in_.number(frame, "line");
    }
  }

  void check_segment(Value value, std::size_t index) {
    const Value segment = in_.dictionary(value);
    Device& device = devices_[number(segment, "device")];
    const std::uint64_t begin = number(segment, "address"), total = number(segment, "total_size");
    const std::uint64_t end = total > UINT64_MAX - begin ? UINT64_MAX : begin + total;
    if (total == 0) report("a segment of 0 bytes");
    if (!device.segments.empty() && device.segments.rbegin()->first >= begin)
      report("segments are not in the order of addresses");
    if (overlapping(device.segments, begin, end) != device.segments.end()) report("segments overlap");
    device.segments[begin] = {end, number(segment, "stream")};
    in_.text(segment, "segment_type");
    check_frames(segment);

    const Value blocks = in_.need(segment, "blocks");
    Sums sums;
    std::size_t block_index = 0;
    for (const Value block : in_.list(blocks, "blocks")) {
      in_.at = {"segments", index, ".blocks", block_index++};
      guarded([&] { check_block(device, in_.dictionary(block), begin, sums); });
    }
    in_.at = {"segments", index};
    const auto compare = [&](const char* key, std::uint64_t sum) {
      if (number(segment, key) != sum)
        report("'" + std::string(key) + "' is not " + std::to_string(sum) + ", the sum over its blocks");
    };
    compare("total_size", sums.total);
    compare("allocated_size", sums.allocated);
    compare("active_size", sums.active);
    compare("requested_size", sums.requested);
  }

  struct Sums {
    std::uint64_t total = 0, allocated = 0, active = 0, requested = 0;
  };

  void check_block(Device& device, Value block, std::uint64_t begin, Sums& sums) {
    const std::uint64_t address = begin + sums.total, size = number(block, "size");
    const std::uint64_t requested = number(block, "requested_size");
    sums.total += size;
    if (in_.number(block, "address", address) != address) report("it does not begin where the block before ends");
    if (size == 0) report("a block of 0 bytes");
    if (requested > size) report("requested_size is above size");
    check_frames(block);
    const std::string_view state = in_.text(block, "state");
    if (state == "inactive") {
      if (requested != 0) report("an inactive block with a requested_size");
      return;
    }
    const bool waits = state == "active_pending_free" || state == "active_awaiting_free";
    if (!waits && state != "active_allocated") return report("unknown state " + in_quotes(state));
    if (!waits) sums.allocated += size;
    sums.active += size;
    sums.requested += requested;
    device.blocks[address] = {address + size, waits};
  }

  void check_trace(std::span<const Value> entries, std::size_t index) {
    Device& device = devices_[index];
    std::uint64_t later = UINT64_MAX;
    for (std::size_t i = entries.size(); i-- > 0;) {
      in_.at = {"device_traces", index, "", i};
      guarded([&] {
        const Value entry = in_.dictionary(entries[i]);
        const std::uint64_t time = number(entry, "time_us");
        if (time > later) report("time runs backwards behind it");
        later = time;
        check_frames(entry);
        if (in_.find(entry, "category") != nullptr) {
          has_category_ = true;
          has_unknown_ = has_unknown_ || in_.text(entry, "category") == "unknown";
        }
        undo(device, entry);
      });
    }
  }

  void undo(Device& device, Value entry) {
    const std::string_view action = in_.text(entry, "action");
    const std::uint64_t size = number(entry, "size"), stream = number(entry, "stream");
    if (action == "oom") {
      number(entry, "device_free");
      return;
    }
    const std::uint64_t address = number(entry, "addr");
    const std::uint64_t end = size > UINT64_MAX - address ? UINT64_MAX : address + size;
    if (action == "alloc") {
      undo_alloc(device, address);
    } else if (action == "free_requested") {
      const auto block = device.blocks.find(address);
      if (block == device.blocks.end())
        report("no free_completed follows, and no block waits there at the end");
      else if (!block->second.waits)
        report("the block there is not waiting");
      else
        block->second.waits = false;
    } else if (action == "free_completed") {
      undo_free_completed(device, address, std::max(end, address + 1));
    } else if (action == "segment_free" || action == "segment_unmap") {
      undo_unmap(device, address, {end, stream}, action == "segment_unmap");
    } else if (action == "segment_alloc") {
      const auto segment = device.segments.find(address);
      if (segment == device.segments.end() || segment->second.end != end)
        report("no segment of that address and size follows");
      else
        device.segments.erase(segment);
      check_unused(device, address, end);
    } else if (action == "segment_map") {
      undo_map(device, address, end);
      check_unused(device, address, end);
    } else if (action != "snapshot" && action != "annotate") {
      report("unknown action " + in_quotes(action));
    }
  }

  void undo_alloc(Device& device, std::uint64_t address) {
    const auto block = device.blocks.find(address);
    if (block == device.blocks.end()) return report("its block is neither freed later nor there at the end");
    if (block->second.waits) report("its block waits without a free_requested");
    device.blocks.erase(block);
  }

  void undo_free_completed(Device& device, std::uint64_t address, std::uint64_t end) {
    if (device.blocks.contains(address)) return report("a block is there afterwards");
    if (overlapping(device.blocks, address, end) != device.blocks.end()) report("a live block overlaps it");
    const auto segment = overlapping(device.segments, address, end);
    if (segment == device.segments.end() || segment->first > address || segment->second.end < end)
      report("the block lies in no segment");
    device.blocks[address] = {end, true};
  }

  void undo_unmap(Device& device, std::uint64_t begin, LiveSegment segment, bool joins) {
    auto& segments = device.segments;
    if (overlapping(segments, begin, segment.end) != segments.end())
      return report("it is still part of a segment afterwards");
    if (joins) {
      const auto next = segments.find(segment.end);
      if (next != segments.end() && next->second.stream == segment.stream) {
        segment.end = next->second.end;
        segments.erase(next);
      }
      auto previous = segments.lower_bound(begin);
      if (previous != segments.begin() && (--previous)->second.end == begin &&
          previous->second.stream == segment.stream) {
        previous->second.end = segment.end;
        return;
      }
    }
    segments[begin] = segment;
  }

  void undo_map(Device& device, std::uint64_t begin, std::uint64_t end) {
    auto& segments = device.segments;
    const auto segment = overlapping(segments, begin, end);
    if (segment == segments.end() || segment->first > begin || segment->second.end < end)
      return report("no segment contains it afterwards");
    const auto [whole_begin, whole] = *segment;
    segments.erase(segment);
    if (whole_begin < begin) segments[whole_begin] = {begin, whole.stream};
    if (end < whole.end) segments[end] = whole;
  }

  void check_unused(Device& device, std::uint64_t begin, std::uint64_t end) {
    if (overlapping(device.blocks, begin, end) != device.blocks.end()) report("a block is in it before it exists");
  }

  ValueTree& tree_;
  SnapshotElements in_;
  std::map<std::uint64_t, Device> devices_;
  std::vector<std::string> violations_;
  bool has_category_ = false, has_unknown_ = false;
};

}  // namespace

std::vector<std::string> check_snapshot(std::string_view bytes, const std::string& path) {
  ValueTree tree(bytes.size());
  bytes.starts_with('\x80') ? read_pickle(bytes, path, tree) : read_json(bytes, path, tree);
  return SnapshotChecker(tree, path).check();
}

}  // namespace poolgrad
