#include "tests/emulation/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>

#include "tests/emulation/fiber.h"

namespace poolgrad::emulation {
namespace {

inline constexpr std::size_t bytes_of_copy = 16;
inline constexpr std::size_t threads_of_warpgroup = 4 * warp_size;

/// Usually the same literal, hence the pointer comparison first.
bool same_text(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

std::string access(const char* verb, const Moment& now, const SharedArray& array, std::int64_t index,
                   const Where& where) {
  return "thread " + std::to_string(now.thread) + " " + verb + " shared " + array.name + "[" + std::to_string(index) +
         "] at " + place_of(where);
}
/// Returns whether an earlier access, given its block and warp barrier counts, is ordered before the current thread.
bool ordered(int thread, std::uint32_t barriers, std::uint32_t of_warp, const Moment& now) {
  return barriers != now.barriers || (thread / warp_size == now.thread / warp_size && of_warp != now.of_warp);
}

void read_now(const Moment& now, SharedUse& use, ReadFor who) {
  const bool same_warp = use.reader >= 0 && use.reader / warp_size == now.thread / warp_size;
  if (use.reader < 0 || use.read != now.barriers)
    use.many_readers = use.many_lanes = false;
  else if (!same_warp)
    use.many_readers = true;
  else if (use.warp_read != now.of_warp)
    use.many_lanes = false;
  else if (use.reader != now.thread)
    use.many_lanes = true;
  if (who == ReadFor::others) use.many_lanes = true;
  use.reader = now.thread;
  use.read = now.barriers;
  use.warp_read = now.of_warp;
}

}  // namespace

std::string place_of(const Where& where) {
  return std::filesystem::path(where.file_name()).filename().string() + ":" + std::to_string(where.line());
}
bool same_place(const Where& a, const Where& b) {
  return a.line() == b.line() && a.column() == b.column() && same_text(a.file_name(), b.file_name());
}

void SharedMemory::begin_block(std::size_t threads, std::int64_t dynamic, std::int64_t most) {
  threads_.assign(threads, {});
  arrays_.clear();
  bytes_ = dynamic_bytes_ = dynamic;
  most_ = most;
}

SharedArray& SharedMemory::declared(const char* name, std::size_t element, std::int64_t count, Where where,
                                    bool fixed) {
  const Unobserved emulation;
  for (DeclaredArray& known : arrays_)
    if (same_place(known.where, where) && same_text(known.array.name, name) &&
        same_text(known.where.function_name(), where.function_name()))  // of one template instance
      return known.array;
  if (fixed) bytes_ += static_cast<std::int64_t>(element) * count;
  if (bytes_ > most_)
    fail_("the shared array " + std::string(name) + " at " + place_of(where) + " makes it " + std::to_string(bytes_) +
          " bytes of shared memory, and a block has at most " + std::to_string(most_));
  DeclaredArray& made = arrays_.emplace_back();
  made.where = where;
  made.bytes.assign(element * static_cast<std::size_t>(count), std::byte{0xff});
  made.uses.resize(static_cast<std::size_t>(count));
  made.array = {name, made.bytes.data(), made.uses.data(), count};
  return made.array;
}
SharedArray& SharedMemory::dynamic(const char* name, std::size_t element, Where where) {
  return declared(name, element, dynamic_bytes_ / static_cast<std::int64_t>(element), where, false);
}

void SharedMemory::read(const Moment& now, const SharedArray& array, std::int64_t index, Where where, ReadFor who) {
  const Unobserved emulation;
  SharedUse& use = checked(now, array, index, where);
  if (use.writer < 0) fail_(access("reads", now, array, index, where) + ", which no thread has written");
  if (use.under_way) refuse_under_way("reads", use, now, array, index, where);
  if ((use.writer != now.thread || who == ReadFor::others) && !ordered(use.writer, use.written, use.warp_written, now))
    fail_(access("reads", now, array, index, where) + ", which thread " + std::to_string(use.writer) +
          " has written with no barrier in between");
  read_now(now, use, who);
}

void SharedMemory::write(const Moment& now, const SharedArray& array, std::int64_t index, Where where) {
  const Unobserved emulation;
  SharedUse& use = checked(now, array, index, where);
  if (use.under_way) refuse_under_way("writes", use, now, array, index, where);
  if (use.products > 0)
    fail_(access("writes", now, array, index, where) + ", which is read by a product of thread " +
          std::to_string(use.multiplier) + ", which has not waited for it");
  if (use.writer >= 0 && use.writer != now.thread && !ordered(use.writer, use.written, use.warp_written, now))
    fail_(access("writes", now, array, index, where) + ", as thread " + std::to_string(use.writer) +
          " has with no barrier in between");
  const bool read_by_others = use.reader >= 0 && (use.many_readers || use.many_lanes || use.reader != now.thread);
  if (read_by_others && use.read == now.barriers &&
      (use.many_readers || !ordered(use.reader, use.read, use.warp_read, now)))
    fail_(access("writes", now, array, index, where) + ", which thread " + std::to_string(use.reader) +
          " has read with no barrier in between");
  written_now(now, use);
}

void SharedMemory::copy(const Moment& now, const SharedArray& array, std::int64_t index, const void* from,
                        std::size_t bytes, Where where) {
  const Unobserved emulation;
  if (reinterpret_cast<std::uintptr_t>(from) % bytes_of_copy != 0)
    fail_(access("copies to", now, array, index, where) + " from an address that is not a multiple of 16");
  write(now, array, index, where);
  array.uses[index].under_way = true;
  std::memset(array.data + static_cast<std::size_t>(index) * bytes_of_copy, 0xff, bytes_of_copy);
  of(now).copies.push_back({&array, index, from, bytes, of(now).copy_groups});
}
void SharedMemory::commit_copies(const Moment& now) {
  const Unobserved emulation;
  ++of(now).copy_groups;
}
void SharedMemory::wait_for_copies(const Moment& now, std::int64_t pending) {
  const Unobserved emulation;
  UnderWay& own = of(now);
  std::erase_if(own.copies, [&](const Copy& copy) {
    if (copy.group >= own.copy_groups - pending) return false;
    std::byte* to = copy.array->data + static_cast<std::size_t>(copy.index) * bytes_of_copy;
    std::memset(to, 0, bytes_of_copy);
    std::memcpy(to, copy.from, copy.bytes);
    SharedUse& use = copy.array->uses[copy.index];
    use.under_way = false;
    written_now(now, use);
    return true;
  });
}

void SharedMemory::fence_for_products(const Moment& now) {
  const Unobserved emulation;
  of(now).fences.push_back(now.barriers);
}
void SharedMemory::begin_products(const Moment& now) {
  const Unobserved emulation;
  of(now).may_multiply = true;
}
void SharedMemory::read_for_product(const Moment& now, const SharedArray& array, std::int64_t index, Where where) {
  read(now, array, index, where, ReadFor::others);
  const Unobserved emulation;
  SharedUse& use = array.uses[index];
  const std::vector<std::uint32_t>& fences = threads_[static_cast<std::size_t>(use.writer)].fences;
  if (use.fences >= fences.size() || fences[use.fences] == now.barriers)
    fail_(access("multiplies", now, array, index, where) + ", which thread " + std::to_string(use.writer) +
          " has written with no fence_for_products() and barrier in between");
  ++use.products;
  use.multiplier = now.thread;
  of(now).multiplied.push_back({&use, of(now).product_groups});
}
float* SharedMemory::sums_of_product(const Moment& now, float* registers, std::size_t count, bool adds, Where where) {
  const Unobserved emulation;
  UnderWay& own = of(now);
  if (threads_.size() % threads_of_warpgroup != 0)
    fail_("a product at " + place_of(where) + " in a block of " + std::to_string(threads_.size()) +
          " threads, which is not a multiple of 128");
  if (!own.may_multiply)
    fail_("a product at " + place_of(where) + " by thread " + std::to_string(now.thread) +
          " without begin_products() after its last use of registers");
  ++own.products;
  auto sums = std::find_if(own.sums.begin(), own.sums.end(), [&](const Sums& s) { return s.registers == registers; });
  if (sums == own.sums.end()) {
    sums = own.sums.insert(sums, {registers, {registers, registers + count}, 0});
    std::fill_n(registers, count, std::numeric_limits<float>::quiet_NaN());
  }
  sums->group = own.product_groups;
  if (!adds) std::fill(sums->values.begin(), sums->values.end(), 0.0f);
  return sums->values.data();
}
void SharedMemory::commit_products(const Moment& now) {
  const Unobserved emulation;
  ++of(now).product_groups;
}
void SharedMemory::wait_for_products(const Moment& now, std::int64_t pending) {
  const Unobserved emulation;
  UnderWay& own = of(now);
  const std::int64_t done = own.product_groups - pending;
  std::erase_if(own.sums, [&](const Sums& sums) {
    if (sums.group >= done) return false;
    std::copy(sums.values.begin(), sums.values.end(), sums.registers);
    return true;
  });
  std::erase_if(own.multiplied, [&](const Multiplied& one) {
    if (one.group >= done) return false;
    --one.use->products;
    read_now(now, *one.use, ReadFor::others);
    return true;
  });
  own.may_multiply = false;
}

bool SharedMemory::warpgroups_agree() const {
  for (std::size_t i = 0; i + warp_size < threads_.size(); i += warp_size)
    if ((i + warp_size) % threads_of_warpgroup != 0 && threads_[i].products != threads_[i + warp_size].products)
      return false;
  return true;
}
void SharedMemory::end_thread(const Moment& now) {
  const Unobserved emulation;
  if (!of(now).sums.empty())
    fail_("thread " + std::to_string(now.thread) + " has returned before it waited for its products");
}

void SharedMemory::refuse_index(const Moment& now, const SharedArray& array, std::int64_t index,
                                const Where& where) const {
  fail_(access("uses", now, array, index, where) + ", which has " + std::to_string(array.count) + " elements");
}
void SharedMemory::written_now(const Moment& now, SharedUse& use) const {
  use.writer = now.thread;
  use.written = now.barriers;
  use.warp_written = now.of_warp;
  use.fences = static_cast<std::uint32_t>(threads_[static_cast<std::size_t>(now.thread)].fences.size());
}
void SharedMemory::refuse_under_way(const char* verb, const SharedUse& use, const Moment& now, const SharedArray& array,
                                    std::int64_t index, const Where& where) const {
  fail_(access(verb, now, array, index, where) + ", which is the target of an unfinished copy of thread " +
        std::to_string(use.writer) + ", which has not waited for it");
}

}  // namespace poolgrad::emulation
