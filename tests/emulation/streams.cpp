#include "tests/emulation/streams.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"

namespace poolgrad::emulation {

namespace {
constexpr std::size_t most_queued = 1024;  // a real driver also blocks its caller at about this number
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
  if (const auto place = captured_.find(stream); place != captured_.end()) {
    auto& [capture, before] = place->second;
    check_whole(*capture, "enqueue");
    capture->recording->nodes.push_back({std::move(work), std::move(before)});
    before = {capture->recording->nodes.size() - 1};
    return;
  }
  if (queued_ >= most_queued)
    for (std::size_t steps = random_() % most_queued; steps > 0 && step(false); --steps) {
    }
  push(stream, std::move(work));
}

std::uint64_t Streams::create_event() {
  events_[++last_event_] = nothing_;  // already complete
  return last_event_;
}

void Streams::destroy_event(std::uint64_t event) {
  known(event, "event_destroy");
  events_.erase(event);
  captured_events_.erase(event);
}

void Streams::record(std::uint64_t event, std::uint64_t stream) {
  Mark& mark = known(event, "event_record");
  captured_events_.erase(event);
  if (const auto place = captured_.find(stream); place != captured_.end()) {
    check_whole(*place->second.capture, "event_record");
    captured_events_[event] = place->second;
    return;
  }
  mark = std::make_shared<bool>(false);
  push(stream, Record{mark});
}

void Streams::wait(std::uint64_t stream, std::uint64_t event) {
  const Mark& mark = known(event, "stream_wait");
  const auto earlier = captured_events_.find(event);
  const auto later = captured_.find(stream);
  if (earlier == captured_events_.end()) {
    if (later == captured_.end()) return push(stream, Wait{mark});
    if (mark == nothing_) return;
    refuse_captured(stream, "stream_wait", "the event marks work outside the recording");
  }
  const Place& joined = earlier->second;
  check_whole(*joined.capture, "stream_wait");
  if (later == captured_.end()) {
    captured_.emplace(stream, joined);
    return;
  }
  if (later->second.capture != joined.capture)
    refuse_captured(stream, "stream_wait", "the event belongs to another recording");
  later->second.before.insert(later->second.before.end(), joined.before.begin(), joined.before.end());
}

void Streams::begin_capture(std::uint64_t stream) {
  if (is_captured(stream)) refuse_captured(stream, "begin_capture", "the stream is being recorded already");
  captured_[stream] = {std::make_shared<Capture>(Capture{.origin = stream, .broken = {}}), {}};
}

std::shared_ptr<const Streams::Recording> Streams::end_capture(std::uint64_t stream) {
  const auto place = captured_.find(stream);
  if (place == captured_.end() || place->second.capture->origin != stream)
    throw CudaError("[end_capture] no recording was begun on the stream");
  const Place last = place->second;
  const auto is_of_it = [&](const auto& entry) { return entry.second.capture == last.capture; };
  std::vector<bool> joined(last.capture->recording->nodes.size());
  std::vector<std::size_t> next = last.before;
  while (!next.empty()) {
    const std::size_t node = next.back();
    next.pop_back();
    if (joined[node]) continue;
    joined[node] = true;
    const auto& before = last.capture->recording->nodes[node].before;
    next.insert(next.end(), before.begin(), before.end());
  }
  std::erase_if(captured_, is_of_it);
  check_whole(*last.capture, "end_capture");
  if (std::ranges::find(joined, false) != joined.end())
    throw CudaError("[end_capture] the recorded work of another stream was not joined");
  return last.capture->recording;
}

void Streams::check_whole(const Capture& capture, const char* call) const {
  if (capture.broken.empty()) return;
  throw CudaError("[" + std::string(call) + "] the recording was broken before: " + capture.broken);
}

void Streams::refuse_captured(std::uint64_t stream, const char* call, const char* why) {
  std::string& broken = captured_.at(stream).capture->broken;
  const std::string reason = "[" + std::string(call) + "] " + why;
  if (broken.empty()) broken = reason;
  throw CudaError(reason);
}

void Streams::launch(std::uint64_t stream, std::shared_ptr<const Recording> recording) {
  enqueue(stream, [this, graph = std::move(recording)] { run_in_some_order(*graph); });
}

void Streams::run_in_some_order(const Recording& recording) {
  std::vector<std::size_t> waits_for(recording.nodes.size()), able;
  std::vector<std::vector<std::size_t>> after(recording.nodes.size());
  for (std::size_t i = 0; i < recording.nodes.size(); ++i) {
    for (const std::size_t before : recording.nodes[i].before) after[before].push_back(i);
    waits_for[i] = recording.nodes[i].before.size();
    if (waits_for[i] == 0) able.push_back(i);
  }
  while (!able.empty()) {
    std::swap(able[random_() % able.size()], able.back());
    const std::size_t next = able.back();
    able.pop_back();
    recording.nodes[next].work();
    for (const std::size_t later : after[next])
      if (--waits_for[later] == 0) able.push_back(later);
  }
}

void Streams::wait_for_all(std::uint64_t stream, const std::function<bool(std::uint64_t)>& earlier) {
  std::vector<Mark> marks;
  for (auto& [other, queue] : queues_)
    if (other != stream && !queue.entries.empty() && earlier(other)) {
      marks.push_back(std::make_shared<bool>(false));
      push(other, Record{marks.back()});
    }
  for (const Mark& mark : marks) push(stream, Wait{mark});
}

std::shared_ptr<bool> Streams::hold(std::uint64_t stream) {
  auto mark = std::make_shared<bool>(false);
  push(stream, Wait{mark});
  return mark;
}

bool Streams::step(bool by_rank) {
  std::vector<Queue*> able;
  for (auto& [stream, queue] : queues_) {
    if (queue.entries.empty()) continue;
    const Wait* wait = std::get_if<Wait>(&queue.entries.front());
    if (!wait || *wait->mark) able.push_back(&queue);
  }
  if (able.empty()) return false;
  Queue* next = able[random_() % able.size()];
  if (by_rank)
    for (Queue* queue : able)
      if (queue->rank > next->rank) next = queue;
  Entry entry = std::move(next->entries.front());
  next->entries.pop_front();
  --queued_;
  if (const Record* record = std::get_if<Record>(&entry)) *record->mark = true;
  if (const Work* work = std::get_if<Work>(&entry)) (*work)();
  return true;
}

template <class Done>
bool Streams::run_until(const Done& done) {
  const bool by_rank = random_() % 2 == 0;
  for (auto& [stream, queue] : queues_) queue.rank = random_();
  while (!done())
    if (queued_ == 0 || !step(by_rank)) return queued_ == 0;
  return true;
}

namespace {
void demand_end(bool reached, const char* call) {
  if (!reached) throw CudaError("[" + std::string(call) + "] the work waits for a stream that is held");
}
}  // namespace

bool Streams::query(std::uint64_t event) {
  const Mark mark = known(event, "event_query");
  if (captured_events_.contains(event))
    throw CudaError("[event_query] the event belongs to a recording, so it never finishes");
  std::size_t steps = random_() % 4;
  run_until([&] { return steps-- == 0; });
  return *mark;
}

void Streams::synchronize(std::uint64_t event) {
  const Mark mark = known(event, "event_synchronize");
  if (captured_events_.contains(event))
    throw CudaError("[event_synchronize] the event belongs to a recording, so it never finishes");
  demand_end(run_until([&] { return *mark; }), "event_synchronize");
}

void Streams::synchronize_stream(std::uint64_t stream, const char* call) {
  if (is_captured(stream)) refuse_captured(stream, call, "the stream is being recorded");
  const Queue& queue = queues_[stream];
  demand_end(run_until([&] { return queue.entries.empty(); }), call);
}

void Streams::synchronize_all() {
  demand_end(run_until([&] { return queued_ == 0; }), "synchronize");
}

}  // namespace poolgrad::emulation
