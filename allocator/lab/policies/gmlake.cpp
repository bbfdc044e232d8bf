// GMLake (Guo et al., ASPLOS 2024): virtual memory stitching, from the paper and the options of its implementation.
//
// * Requests below the fragment limit are served as by PytorchNative (pytorch.cpp). Larger ones are multiples of chunks
//   of 2 MiB, each a physical handle. A primitive block is a run of chunks. A stitched block maps several primitive
//   blocks again, to one range of addresses. It holds no memory of its own, is cached when freed, and can be reused
//   while none of its primitive blocks is in use.
// * Four cases: (1) a free primitive or stitched block of exactly the size; (2) the smallest larger primitive block,
//   split, with its former whole cached as a stitched block; (3) free primitive blocks, largest first, stitched, the
//   last one split to fit; (4) the missing bytes are allocated and stitched to all free blocks. Before (3), a free
//   stitched block of up to ten times the size (`reuse_limit`) is taken whole: fewer driver calls, more memory.
// * If the device refuses, waits for pending frees, releases all free memory, and tries the request again.
// * Chunks move between streams after a wait; record_stream is as in PyTorch.
//
// The fragment limit is 512 MiB in the implementation, for few driver calls. Here it is one chunk unless
// `fragment_limit` is given, the tightest setting. Left out: the limit of 1000 GB on stitched addresses, replaced by
// the 16 last freed stitched blocks of each size; and the cost of unmapping stitched blocks.
#include <algorithm>
#include <deque>
#include <map>

#include "allocator/lab/policies/model_policy.h"
#include "allocator/lab/policies/pytorch_rules.h"

namespace poolgrad {

namespace {

constexpr std::size_t gmlake_chunk = std::size_t{2} << 20;
constexpr std::size_t kept_per_size = 16;
constexpr std::uint64_t whole = 0;  // list of all free primitive blocks

// An allocation: one or several runs of chunks. Its `stream` is that of the allocation.
struct Grant : Block {
  // The primitive blocks from `first` on, over `size` bytes; splits may follow.
  struct Run {
    Block* first;
    std::size_t size;
  };
  std::vector<Run> runs;
  bool stitched = false;
  std::uint16_t freed_on = 0;
};

constexpr std::uint64_t grant_mark = 1;  // in Block::number

class Gmlake : public pytorch::RecordingPolicy {
 public:
  explicit Gmlake(const PolicyContext& context)
      : RecordingPolicy(context),
        fragment_limit_(std::max(context.bytes("fragment_limit", gmlake_chunk), pytorch::largest_small + 1)),
        reuse_limit_(context.count("reuse_limit", 10)),
        segments_(device_) {}

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override {
    poll();
    if (Block* block = find(bytes, stream)) return block;
    synchronize();
    give_back_free_memory();
    return find(bytes, stream);
  }

  // The next user of a chunk waits for the stream of the free, so that stream needs no event.
  void release(Block* block, std::uint16_t stream) override {
    if (!is_grant(block)) return RecordingPolicy::release(block, stream);
    static_cast<Grant*>(block)->freed_on = stream;
    RecordingPolicy::release(block, own_stream(block));
  }

  std::uint16_t own_stream(const Block* block) const override {
    return is_grant(block) ? static_cast<std::uint16_t>(block->stream) : pytorch::stream_of(block);
  }

 private:
  static bool is_grant(const Block* block) { return block->number == grant_mark; }

  Block* find(std::size_t bytes, std::uint16_t stream) {
    if (bytes < fragment_limit_) return segments_.allocate(bytes, stream);
    const std::size_t size = round_up_to(bytes, gmlake_chunk);
    Block* best = primitive_.find(whole, size);
    if (best != nullptr && best->size == size) return grant(size, stream, {{best, size}});
    if (const auto kept = kept_.find(size); kept != kept_.end()) {
      if (Grant* same = take_kept(kept->second)) return hand_out(same, stream);
    }
    if (best != nullptr) {
      keep_whole(best);
      split(best, size);
      return grant(size, stream, {{best, size}});
    }
    for (auto kept = kept_.upper_bound(size); kept != kept_.end() && (kept->first - 1) / size < reuse_limit_; ++kept) {
      if (Grant* larger = take_kept(kept->second)) return hand_out(larger, stream);
    }
    return stitch(size, stream);
  }

  Grant* stitch(std::size_t size, std::uint16_t stream) {
    std::vector<Grant::Run> runs;
    std::size_t missing = size;
    for (Block* part : largest_first(size)) {
      if (missing == 0) break;
      if (part->size > missing) split(part, missing);
      runs.push_back({part, part->size});
      missing -= part->size;
    }
    if (missing != 0) {
      if (!device_.map(missing, missing / gmlake_chunk)) return nullptr;
      Block* fresh = primitive_.add(device_.reserve(missing), missing, whole);
      fresh->number = ++primitives_;
      runs.push_back({primitive_.put(fresh), missing});
    }
    if (runs.size() > 1) device_.remap(size / gmlake_chunk);
    return grant(size, stream, runs);
  }

  // Free primitive blocks, largest first, that sum to `size`; all if there are too few.
  std::vector<Block*> largest_first(std::size_t size) const {
    std::vector<Block*> parts;
    if (const BucketIndex* free = primitive_.index(whole)) {
      std::size_t sum = 0;
      free->for_each_largest_first([&](Block* part) {
        parts.push_back(part);
        return (sum += part->size) < size;
      });
    }
    return parts;
  }

  // Splits a free primitive block; the parts have new addresses.
  void split(Block* block, std::size_t size) {
    device_.remap(block->size / gmlake_chunk);
    primitive_.take(block);
    Block* rest = primitive_.split(block, size);
    rest->number = ++primitives_;
    primitive_.put(block);
    primitive_.put(rest);
  }

  Grant* make(std::size_t size, const std::vector<Grant::Run>& runs) {
    Grant* grant = spare_.empty() ? &grants_.emplace_back() : spare_.back();
    if (!spare_.empty()) spare_.pop_back();
    grant->size = size;
    grant->number = grant_mark;
    grant->runs = runs;
    grant->stitched = runs.size() > 1;
    return grant;
  }

  Grant* grant(std::size_t size, std::uint16_t stream, const std::vector<Grant::Run>& runs) {
    return hand_out(make(size, runs), stream);
  }

  // Stops when visit(Block*) returns false; returns whether all returned true.
  template <class Visit>
  static bool for_each_primitive(const Grant& grant, Visit visit) {
    for (const auto& [first, size] : grant.runs) {
      Block* block = first;
      for (std::size_t left = size; left != 0; block = block->next) {
        left -= block->size;
        if (!visit(block)) return false;
      }
    }
    return true;
  }

  Grant* hand_out(Grant* grant, std::uint16_t stream) {
    waited_for_.clear();
    for_each_primitive(*grant, [&](Block* block) {
      primitive_.take(block);
      const std::uint64_t last = block->epoch;  // stream of the free, + 1
      if (last == 0 || last == stream + 1u) return true;
      if (std::ranges::find(waited_for_, last) != waited_for_.end()) return true;
      waited_for_.push_back(last);
      device_.wait(stream, device_.record(static_cast<std::uint16_t>(last - 1)));
      return true;
    });
    grant->stream = stream;
    return grant;
  }

  // The last freed stitched block without a part in use.
  static Grant* take_kept(std::vector<Grant*>& kept) {
    for (std::size_t i = kept.size(); i-- > 0;) {
      Grant* grant = kept[i];
      if (!for_each_primitive(*grant, [](const Block* block) { return block->state == BlockState::free; })) continue;
      kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i));
      return grant;
    }
    return nullptr;
  }

  void keep(Grant* grant) {
    auto& kept = kept_[grant->size];
    if (kept.size() == kept_per_size) {
      spare_.push_back(kept.front());
      kept.erase(kept.begin());
    }
    kept.push_back(grant);
  }

  // Caches the whole as a stitched block before a split.
  void keep_whole(Block* block) {
    Grant* grant = make(block->size, {{block, block->size}});
    grant->stitched = true;
    keep(grant);
  }

  void put(Block* block) override {
    if (!is_grant(block)) return segments_.put(block);
    Grant* grant = static_cast<Grant*>(block);
    for_each_primitive(*grant, [&](Block* primitive) {
      primitive->epoch = grant->freed_on + 1u;
      primitive_.put(primitive);
      return true;
    });
    if (grant->stitched) {
      keep(grant);
    } else {
      spare_.push_back(grant);
    }
  }

  void give_back_free_memory() {
    segments_.free_cached();
    for (auto& [size, kept] : kept_) spare_.insert(spare_.end(), kept.begin(), kept.end());
    kept_.clear();
    const std::vector<Block*> blocks = primitive_.blocks(whole);
    if (!blocks.empty()) device_.synchronize_all();
    for (Block* block : blocks) {
      device_.unmap(block->size, block->size / gmlake_chunk);
      primitive_.remove(block);
    }
  }

  std::size_t fragment_limit_;
  std::size_t reuse_limit_;
  pytorch::Segments segments_;
  ChunkHeap primitive_{gmlake_chunk};  // with distinct `number`s, so that they never merge
  std::uint64_t primitives_ = grant_mark;
  std::deque<Grant> grants_;
  std::vector<Grant*> spare_;
  std::map<std::size_t, std::vector<Grant*>> kept_;  // stitched blocks by size
  std::vector<std::uint64_t> waited_for_;
};

}  // namespace

std::unique_ptr<Policy> make_gmlake(const PolicyContext& context) { return std::make_unique<Gmlake>(context); }

}  // namespace poolgrad
