#include "kernels/schedule/device_program.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/base/environment.h"
#include "allocator/memory/stream_capture.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/instruction_sets.h"

namespace poolgrad::kernels {
namespace {

/// Packs arrays one after another at `to`, or only counts bytes if `to` is null. Returns the address of each array
/// after a copy of the bytes to `base`.
class Packing {
 public:
  explicit Packing(std::byte* to = nullptr, const std::byte* base = nullptr)
      : to_(to), base_(reinterpret_cast<std::uintptr_t>(base)) {}

  template <class T>
  const T* add(const T* from, std::int64_t count) {
    if (!from) return nullptr;
    const std::size_t at = (size_ + 15) / 16 * 16, bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (to_) std::memcpy(to_ + at, from, bytes);
    size_ = at + bytes;
    return reinterpret_cast<const T*>(base_ + at);
  }
  AttentionProgram add(const AttentionProgram& from);
  std::size_t size() const { return size_; }

 private:
  std::byte* to_;
  std::uintptr_t base_;
  std::size_t size_ = 0;
};

AttentionProgram Packing::add(const AttentionProgram& from) {
  const std::int64_t numbers = from.head_period * from.tiles, runs = from.tile_begin[numbers];
  std::int64_t logarithms = 0;
  for (std::int64_t r = 0; r < runs; ++r)
    if (from.run[r].period > 0) logarithms = std::max<std::int64_t>(logarithms, from.run[r].table + from.run[r].period);
  AttentionSchedule schedule = *from.schedule;
  schedule.documents = add(schedule.documents, schedule.document_count + 1);
  for (int t = 0; t < schedule.term_count; ++t) {
    AttentionTerm& term = schedule.term[t];
    if (!term.row_begin) continue;
    const std::int64_t blocks = term.listed_blocks();
    term.row_begin = add(term.row_begin, term.row_begins());
    term.column_begin = add(term.column_begin, term.column_begins());
    term.columns = add(term.columns, blocks);
    term.rows = add(term.rows, blocks);
    term.column_bitmap = add(term.column_bitmap, blocks);
    term.row_bitmap = add(term.row_bitmap, blocks);
    term.bits = add(term.bits, term.bitmaps * term.size);
  }
  AttentionProgram to = from;
  to.schedule = add(&schedule, 1);
  to.tile = add(from.tile, from.tiles);
  to.tile_begin = add(from.tile_begin, numbers + 1);
  to.longest_first = add(from.longest_first, numbers);
  to.level_begin = nullptr;  // kernels do not read it
  to.run = add(from.run, runs);
  to.log_multiplicity = add(from.log_multiplicity, logarithms);
  return to;
}

std::size_t packed_bytes(const AttentionProgram& program) {
  Packing packing;
  packing.add(program);
  return packing.size();
}

/// Returns a number for the calling thread's per_thread_stream, 0 for other streams. per_thread_stream is a different
/// stream in each thread, and nothing orders their work. Pools reuse the names of ended threads; these numbers are
/// never reused.
std::uint64_t thread_of(Stream stream) {
  static std::atomic<std::uint64_t> threads{0};
  thread_local const std::uint64_t number = ++threads;
  return stream.device.is_cuda() && stream.id == per_thread_stream ? number : 0;
}

/// Cache of the programs copied to one device.
class KeptPrograms final : public ReclaimClient {
 public:
  /// Returns the cache of a device, created on first use; it outlives its entries.
  static KeptPrograms& of(Device device) {
    static std::mutex mutex;
    static auto* const all = new std::unordered_map<Device, std::shared_ptr<KeptPrograms>>;
    const std::lock_guard lock(mutex);
    std::shared_ptr<KeptPrograms>& kept = (*all)[device];
    if (!kept) {
      kept = std::make_shared<KeptPrograms>();
      allocator_for(device).add_client(kept);
    }
    return *kept;
  }

  std::shared_ptr<const DeviceProgram> get(Stream stream, const std::shared_ptr<const WholeProgram>& whole) {
    const std::uint64_t thread = thread_of(stream);
    const auto is_it = [&](const Copy& copy) {
      return copy.of->whole() == whole && copy.of->stream() == stream && copy.thread == thread;
    };
    const std::uint64_t hash = mix(reinterpret_cast<std::uintptr_t>(whole.get()) + mix(stream.id + mix(thread)));
    return copies_.get(hash, is_it, [&] { return Copy{std::make_shared<DeviceProgram>(stream, whole), thread}; }).of;
  }

  std::string name() const override { return "attention programs"; }
  double price_per_byte() const override { return 1; }  // a later call expands and copies it again
  std::size_t estimate() override { return static_cast<std::size_t>(copies_.statistics().bytes); }
  std::size_t reclaim(std::size_t) override {
    const std::size_t freed = estimate();
    copies_.clear();
    return freed;
  }

 private:
  struct Copy {
    std::shared_ptr<const DeviceProgram> of;
    std::uint64_t thread;
    std::size_t bytes() const { return of->bytes(); }
  };
  Lru<Copy> copies_{std::size_t{64} << 20, 256};
};

}  // namespace

GpuForwardPlan GpuForwardPlan::make(const AttentionProgram& program, const View& q, const View& k, const View& v) {
  const DType compute = compute_dtype(q.dtype);
  const std::int64_t group = q.shape[2] / k.shape[2];
  GpuForwardPlan plan;
  plan.rows = q.shape[0] * q.shape[1] * q.shape[2];
  if (q.shape[1] == 1 && group <= gpu_tile_rows(compute) && program.head_period == 1) plan.stacked = group;
  plan.chunks = std::max<std::int64_t>(1, ceil_div(v.shape[3], gpu_result_columns(compute)));
  // Enough blocks for two rounds of a large GPU. A part has enough keys to outweigh the cost of joining it.
  constexpr std::int64_t enough_blocks = 256, worthwhile_keys = 256;
  const std::int64_t blocks = q.shape[0] * (q.shape[2] / plan.stacked) * program.tiles * plan.chunks,
                     longest = program.longest_first[0];
  std::int64_t keys = 0;
  for (std::int64_t r = program.tile_begin[longest]; r < program.tile_begin[longest + 1]; ++r)
    keys += program.run[r].keys.count;
  plan.parts = std::clamp<std::int64_t>(enough_blocks / blocks, 1, std::max<std::int64_t>(1, keys / worthwhile_keys));
  return plan;
}

namespace {

std::atomic<bool>& mma() {
  static std::atomic<bool> allowed{switched_on("POOLGRAD_MMA", true)};
  return allowed;
}

}  // namespace

void allow_mma(bool allowed) { mma() = allowed; }
bool mma_allowed() { return mma(); }
std::string_view attention_backend(Device device) {
  if (device.type != DeviceType::cuda) return instruction_set();
  return mma_allowed() ? "cuda cores, f16, bf16 and f32: mma" : "cuda cores";
}

bool mma_takes(std::initializer_list<const View*> operands) {
  if (!mma_allowed()) return false;
  const DType dtype = (*operands.begin())->dtype;
  if (dtype != DType::f16 && dtype != DType::bf16 && dtype != DType::f32) return false;
  constexpr std::int64_t together = 16;  // bytes of one vector load
  const auto elements = together / static_cast<std::int64_t>(size_of(dtype));
  for (const View* x : operands) {
    if (!x->data) continue;
    bool fits = x->dtype == dtype && x->shape[3] >= 16 && x->shape[3] <= 128 && x->shape[3] % 16 == 0 &&
                reinterpret_cast<std::uintptr_t>(x->data) % together == 0;
    for (int d = 0; d < 3; ++d) fits &= x->shape[d] <= 1 || x->strides[d] % elements == 0;
    if (!fits) return false;
  }
  return true;
}

GpuSplitPlan GpuSplitPlan::make(const View& visited, const View& visited_out, std::int64_t kv_heads) {
  GpuSplitPlan plan{.batch = visited.shape[0], .kv_heads = kv_heads};
  std::int64_t of_head = 0;
  for (const View* x : {&visited, &visited_out})
    if (x->data) of_head += split_planes * x->shape[1] * (x->shape[2] / kv_heads) * x->shape[3];
  const std::int64_t heads = std::max<std::int64_t>(1, most_split_elements / std::max<std::int64_t>(1, of_head));
  plan.heads_once = std::min(heads, kv_heads);
  plan.batches_once = std::clamp<std::int64_t>(heads / kv_heads, 1, std::max<std::int64_t>(1, plan.batch));
  plan.elements = plan.batches_once * plan.heads_once * of_head;
  return plan;
}

DeviceProgram::DeviceProgram(Stream stream, std::shared_ptr<const WholeProgram> whole)
    : stream_(stream),
      whole_(std::move(whole)),
      bytes_(packed_bytes(whole_->program())),
      memory_(stream, "attention programs", static_cast<std::int64_t>(bytes_)) {
  if (StreamCapture::covers(stream))
    throw DeviceError(
        "[attention] a recorded step cannot use a new pattern, because its program would be copied from the host");
  std::vector<std::byte> bytes(bytes_);
  program_ = Packing(bytes.data(), memory_.data()).add(whole_->program());
  const auto array = [&](std::byte* data) {
    return View{data, DType::u8, 1, {static_cast<std::int64_t>(bytes_)}, {1}};
  };
  copy(stream, array(memory_.data()), array(bytes.data()));
}

std::shared_ptr<const DeviceProgram> program_on_device(Stream stream, const AttentionSchedule& schedule,
                                                       std::int64_t limit) {
  std::shared_ptr<const WholeProgram> whole = ProgramCache::global().get(schedule, limit, false);
  // Lists without an identity belong to this call alone. Programs too large for the cache are rebuilt.
  const bool kept = whole && whole.use_count() > 1;
  constexpr std::size_t most = std::size_t{1} << 30;
  if (!whole) whole = WholeProgram::make(schedule, RowTiling(schedule, limit), most);
  if (!whole)
    throw ValueError("[attention] the program of the pattern is above the limit of 1 GiB on " +
                     to_string(stream.device) + ": (" + std::to_string(schedule.queries.count) + " queries, " +
                     std::to_string(schedule.keys.count) + " keys)");
  auto program = kept ? KeptPrograms::of(stream.device).get(stream, whole)
                      : std::make_shared<const DeviceProgram>(stream, std::move(whole));
  if (StreamCapture* const capture = StreamCapture::current()) capture->keep(program);  // outlives the cache entry
  return program;
}

}  // namespace poolgrad::kernels
