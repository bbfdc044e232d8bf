#include "allocator/emulation/streams.h"

#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"

namespace poolgrad::emulation {

namespace {
constexpr std::size_t most_queued = 1024;  // a driver, too, makes its caller wait at about that
}

Streams::Mark& Streams::known(std::uint64_t event, const char* call) {
  const auto entry = events_.find(event);
  if (entry == events_.end()) throw CudaError("[" + std::string(call) + "] there is no such event");
  return entry->second;
}

void Streams::push(std::uint64_t stream, Entry entry) {
  queues_[stream].entries.push_back(std::move(entry));
  ++queued_;
}

void Streams::enqueue(std::uint64_t stream, Work work) {
  if (queued_ >= most_queued)
    for (std::size_t steps = random_() % most_queued; steps > 0; --steps) step(false);
  push(stream, std::move(work));
}

std::uint64_t Streams::create_event() {
  events_[++last_event_] = std::make_shared<bool>(true);  // nothing is marked: nothing to wait for
  return last_event_;
}

void Streams::destroy_event(std::uint64_t event) {
  known(event, "event_destroy");
  events_.erase(event);
}

void Streams::record(std::uint64_t event, std::uint64_t stream) {
  Mark& mark = known(event, "event_record");
  mark = std::make_shared<bool>(false);
  push(stream, Record{mark});
}

void Streams::wait(std::uint64_t stream, std::uint64_t event) { push(stream, Wait{known(event, "stream_wait")}); }

void Streams::step(bool by_rank) {
  std::vector<Queue*> able;
  for (auto& [stream, queue] : queues_) {
    if (queue.entries.empty()) continue;
    const Wait* wait = std::get_if<Wait>(&queue.entries.front());
    if (!wait || *wait->mark) able.push_back(&queue);
  }
  Queue* next = able[random_() % able.size()];
  if (by_rank)
    for (Queue* queue : able)
      if (queue->rank > next->rank) next = queue;
  Entry entry = std::move(next->entries.front());
  next->entries.pop_front();
  --queued_;
  if (const Record* record = std::get_if<Record>(&entry)) *record->mark = true;
  if (const Work* work = std::get_if<Work>(&entry)) (*work)();
}

template <class Done>
void Streams::run_until(const Done& done) {
  const bool by_rank = random_() % 2 == 0;
  for (auto& [stream, queue] : queues_) queue.rank = random_();
  while (queued_ > 0 && !done()) step(by_rank);
}

bool Streams::query(std::uint64_t event) {
  const Mark mark = known(event, "event_query");
  std::size_t steps = random_() % 4;
  run_until([&] { return steps-- == 0; });
  return *mark;
}

void Streams::synchronize(std::uint64_t event) {
  const Mark mark = known(event, "event_synchronize");
  run_until([&] { return *mark; });
}

void Streams::synchronize_stream(std::uint64_t stream) {
  const Queue& queue = queues_[stream];
  run_until([&] { return queue.entries.empty(); });
}

void Streams::synchronize_all() {
  run_until([] { return false; });
}

}  // namespace poolgrad::emulation
