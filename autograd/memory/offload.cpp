#include "autograd/memory/offload.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "tensor/host_bytes.h"

namespace poolgrad {
namespace {

/// On which a device's tensors leave and come back, beside its other work.
constexpr std::uint64_t copy_stream_id = std::uint64_t{1} << 32;

/// Copies the tensor's bytes behind the work of the stream that made them; its block is not reused before that is done.
void copy_out_on_stream(const Tensor& tensor) {
  const Storage& storage = *tensor.storage();
  CachingAllocator& pool = allocator_for(storage.device());
  const Stream copies{storage.device(), copy_stream_id};
  pool.order(copies, storage.stream());
  pool.use(storage.data(), copies);
}

/// Copies them back behind the work that had the block before, and before whatever its stream does next.
void copy_in_on_stream(const Tensor& tensor) {
  const Storage& storage = *tensor.storage();
  CachingAllocator& pool = allocator_for(storage.device());
  const Stream copies{storage.device(), copy_stream_id};
  pool.order(copies, storage.stream());
  pool.memory().touch(storage.data(), storage.bytes(), copies, std::source_location::current());
  pool.order(storage.stream(), copies);
}

/// A GPU's copies are on the current stream, which is to be behind the work of the stream that made the memory.
void order_behind_its_own(const Storage& storage) {
  const Stream current = current_stream(storage.device());
  if (storage.device().is_cuda() && current != storage.stream())
    allocator_for(storage.device()).order(current, storage.stream());
}

bool has_streams(Device device) { return allocator_for(device).memory().queues_work(); }

}  // namespace

std::shared_ptr<Offload> Offload::to(const std::string& folder, std::size_t ring_bytes) {
  return folder.empty() ? nullptr : std::shared_ptr<Offload>(new Offload(folder, ring_bytes));
}

Offload::Offload(const std::string& folder, std::size_t ring_bytes)
    : file_(OffloadFile::in(folder)), process_(::getpid()), ring_(ring_bytes) {}

/// Nothing is left to move: a Moved keeps its Offload.
Offload::~Offload() {
  if (worker_ == nullptr) return;
  if (in_child()) {
    static auto* const abandoned = new std::vector<Worker*>;  // its thread is the parent's
    abandoned->push_back(worker_.release());
    return;
  }
  {
    const Lock lock(mutex_);
    ends_ = true;
  }
  worker_->wake.notify_one();
  worker_->thread.join();
}

bool Offload::in_child() const { return ::getpid() != process_; }

void Offload::fail(const std::string& reason) {
  if (failure_.empty()) failure_ = reason;
  has_failed_ = true;
}

std::string Offload::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

Offload::Counts Offload::counts() const {
  const Lock lock(mutex_);
  return counts_;
}

void Offload::settle() {
  Lock lock(mutex_);
  while (!in_child() && (under_way_ != nullptr || !writes_.empty() || !reads_.empty())) worker_->done.wait(lock);
}

std::unique_ptr<Offload::Moved> Offload::move_out(const Tensor& tensor, std::uint64_t order) {
  const Storage& storage = *tensor.storage();
  if (!can_move()) return nullptr;
  std::unique_ptr<Moved> moved;
  try {
    if (in_child()) throw FileError("[offload] the file belongs to the process that this one was forked from");
    auto extent = file_->reserve(storage.bytes(), storage.device().is_sim());
    moved.reset(new Moved(shared_from_this(), std::move(extent), storage.bytes(), order));
    if (storage.device().is_sim()) {
      if (has_streams(storage.device())) copy_out_on_stream(tensor);
      return moved;
    }
    order_behind_its_own(storage);
    if (!put_into_ring(*moved, tensor)) {
      read_bytes(whole_storage(tensor), [&, at = std::size_t{0}](const void* piece, std::size_t bytes) mutable {
        file_->write(*moved->extent_, piece, std::exchange(at, at + bytes), bytes);
      });
      moved->is_written_ = true;
      let_go(*moved);
    }
    return moved;
  } catch (const FileError& error) {
    const Lock lock(mutex_);
    fail(error.what());
    return nullptr;
  }
}

void Offload::bring_back(Moved& moved, const Tensor& into) {
  const Storage& storage = *into.storage();
  if (storage.device().is_sim()) {
    if (has_streams(storage.device())) copy_in_on_stream(into);
    return;
  }
  order_behind_its_own(storage);
  Lock lock(mutex_);
  if (moved.task_ == Moved::Task::read && under_way_ != &moved) give_slot_back(moved);  // reading it here is sooner
  while (moved.task_ == Moved::Task::read && !in_child()) worker_->done.wait(lock);
  const auto* const from_ring = moved.is_in_ring() ? static_cast<const std::byte*>(address(*moved.slot_)) : nullptr;
  lock.unlock();
  if (from_ring == nullptr && in_child())
    throw FileError("[offload] what was moved to a file before the process was forked is its parent's");
  write_bytes(whole_storage(into), [&, at = std::size_t{0}](void* piece, std::size_t bytes) mutable {
    const std::size_t begin = std::exchange(at, at + bytes);
    if (from_ring != nullptr)
      std::memcpy(piece, from_ring + begin, bytes);
    else
      file_->read(*moved.extent_, piece, begin, bytes);
  });
  lock.lock();
  ++(from_ring != nullptr ? counts_.from_ring : counts_.from_file);
  away_.erase(moved.order_);
  if (moved.is_written_) give_slot_back(moved);
  if (!in_child()) read_ahead(moved.order_);
}

void Offload::let_go(Moved& moved) {
  const Lock lock(mutex_);
  away_[moved.order_] = &moved;
}

/// False where there can be no room for it.
bool Offload::put_into_ring(Moved& moved, const Tensor& tensor) {
  Lock lock(mutex_);
  if (moved.bytes_ > ring_.capacity() || !start()) return false;
  while (!(moved.slot_ = ring_.add_newest(moved.bytes_, &moved)))
    if (!make_room(lock, UINT64_MAX, true)) return false;
  auto* to = static_cast<std::byte*>(address(*moved.slot_));
  lock.unlock();
  read_bytes(whole_storage(tensor), [&](const void* piece, std::size_t bytes) {
    std::memcpy(to, piece, bytes);
    to += bytes;
  });
  lock.lock();
  away_[moved.order_] = &moved;
  moved.task_ = Moved::Task::write;
  enqueue(moved);
  return true;
}

/// The buffer and the thread; false where there is not enough memory for them.
bool Offload::start() {
  if (worker_ != nullptr) return true;
  try {
    buffer_ = std::make_unique_for_overwrite<std::byte[]>(ring_.capacity());
    worker_ = std::make_unique<Worker>();
    worker_->thread = std::thread([this] { work(); });
    return true;
  } catch (const std::bad_alloc&) {
  } catch (const std::system_error&) {
  }
  worker_.reset();
  buffer_.reset();
  ring_ = Ring(0);
  return false;
}

/// Takes the oldest slot from what is in the file too, if a backward asks for it later than for `before`; or, where it
/// `waits`, lets the thread go on. False where neither is possible.
bool Offload::make_room(Lock& lock, std::uint64_t before, bool waits) {
  if (ring_.empty()) return false;
  Moved& oldest = *ring_.oldest().owner;
  if (oldest.order_ >= before) return false;
  if (under_way_ == &oldest || oldest.task_ == Moved::Task::write) {
    if (waits) worker_->done.wait(lock);
    return waits;
  }
  if (!oldest.is_written_) return false;  // it could not be written: this is all that there is
  give_slot_back(oldest);
  return true;
}

/// As far as there is room: what comes after `from` in the order of a backward.
void Offload::read_ahead(std::uint64_t from) {
  constexpr int far = 256;  // tensors
  auto next = away_.lower_bound(from);
  for (int i = 0; i < far && next != away_.begin(); ++i) {
    Moved& moved = *(--next)->second;
    if (moved.slot_ || !moved.is_written_) continue;
    if (moved.bytes_ > ring_.capacity() || !start()) return;
    Lock none;
    while (!(moved.slot_ = ring_.add_oldest(moved.bytes_, &moved)))
      if (!make_room(none, moved.order_, false)) return;
    moved.task_ = Moved::Task::read;
    enqueue(moved);
  }
}

std::deque<Offload::Moved*>& Offload::queue_of(const Moved& moved) {
  return moved.task_ == Moved::Task::read ? reads_ : writes_;
}

void Offload::enqueue(Moved& moved) {
  queue_of(moved).push_back(&moved);
  worker_->wake.notify_one();
}

/// Not while the thread is at it.
void Offload::give_slot_back(Moved& moved) {
  if (!moved.slot_) return;
  if (moved.task_ != Moved::Task::none) std::erase(queue_of(moved), &moved);
  moved.task_ = Moved::Task::none;
  ring_.give_back(*std::exchange(moved.slot_, {}));
}

/// What a backward waits for comes before what nobody may ever ask for.
void Offload::work() {
  Lock lock(mutex_);
  for (;;) {
    while (!ends_ && reads_.empty() && writes_.empty()) worker_->wake.wait(lock);
    if (ends_) return;
    std::deque<Moved*>& queue = reads_.empty() ? writes_ : reads_;
    Moved& moved = *(under_way_ = queue.front());
    queue.pop_front();
    const bool reads = moved.task_ == Moved::Task::read;
    void* const place = address(*moved.slot_);
    lock.unlock();
    std::string failure;
    try {
      if (reads)
        file_->read(*moved.extent_, place);
      else
        file_->write(*moved.extent_, place);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    under_way_ = nullptr;
    moved.task_ = Moved::Task::none;
    if (reads) {
      if (!failure.empty()) give_slot_back(moved);  // whoever asks for it will try again, and be told
    } else if (failure.empty()) {
      moved.is_written_ = true;
      if (!away_.contains(moved.order_)) give_slot_back(moved);  // somebody has it in memory
    } else {
      fail(failure);
    }
    worker_->done.notify_all();
  }
}

Offload::Moved::~Moved() {
  Lock lock(offload_->mutex_);
  while (offload_->under_way_ == this && !offload_->in_child()) offload_->worker_->done.wait(lock);
  offload_->give_slot_back(*this);
  if (const auto place = offload_->away_.find(order_); place != offload_->away_.end() && place->second == this)
    offload_->away_.erase(place);
}

}  // namespace poolgrad
