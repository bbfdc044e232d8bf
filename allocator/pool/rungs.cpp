// The climb: which rungs there are for a need, and what is noted about each run.
#include <algorithm>
#include <cmath>
#include <limits>

#include "allocator/pool/pool.h"

namespace poolgrad {

namespace {

// A client that does not know its price is asked last.
double price(const ReclaimClient& client) {
  const double nanoseconds = client.price_per_byte();
  return std::isnan(nanoseconds) ? std::numeric_limits<double>::infinity() : nanoseconds;
}

}  // namespace

std::vector<std::shared_ptr<ReclaimClient>> Pool::clients(double most) const {
  std::vector<std::shared_ptr<ReclaimClient>> asked;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& known : clients_) {
      if (auto client = known.lock()) asked.push_back(std::move(client));
    }
  }
  std::erase_if(asked, [&](const auto& client) { return price(*client) > most; });
  std::ranges::stable_sort(
      asked, {}, [](const auto& client) { return std::pair(client->kind() > RungId::derived_cache, price(*client)); });
  return asked;
}

std::vector<Rung> Pool::own_rungs() {
  std::vector<Rung> all;
  const auto add = [&](RungId id, auto estimate, auto run, bool yields = true) {
    all.push_back({id, std::string(to_string(id)),
                   [this, estimate](Need& need) -> std::size_t {
                     const std::lock_guard lock(mutex_);
                     return estimate(need);
                   },
                   run, yields});
  };
  const auto pending = [this](Need&) { return pending_bytes(); };
  const auto others = [this](Need& need) { return other_streams_bytes(need.stream) + pending_bytes(); };
  const auto releasable = [this](Need&) { return idle_bytes(1); };
  const auto unfinished = [this](Need& need) {
    return pending_bytes() + (order_.has_events() ? other_streams_bytes(need.stream) : 0);
  };
  add(RungId::poll, unfinished, [this](Need&) { return poll_pending(); });
  add(RungId::other_streams, others, [this](Need& need) { return take_from_other_streams(need); });
  all.push_back({RungId::magazines, std::string(to_string(RungId::magazines)),
                 [this](Need&) { return magazine_bytes(); }, [this](Need&) { return drain_magazines(); }});
  add(RungId::coalesce, others, [this](Need& need) { return take_across_streams(need); });
  // First only where commit would fail or too much lies idle.
  add(
      RungId::stitch, [this](Need& need) { return stitchable_bytes(need); },
      [this](Need& need) { return stitch(need); });
  add(
      RungId::commit, [](Need& need) { return need.size; }, [this](Need& need) { return commit(need); });
  add(RungId::release, releasable, [this](Need& need) { return release_for(need); });
  add(RungId::synchronise, pending, [this](Need&) { return synchronise_pending(); });
  add(
      RungId::borrow, [this](Need&) { return arenas_[0].free_bytes() + arenas_[1].free_bytes(); },
      [this](Need& need) { return borrow(need); });
  add(
      RungId::wait, [this](Need& need) { return device_calls_ + (device_calls_ended_ - need.device_calls_seen); },
      [this](Need&) { return wait_for_other_threads(); }, false);
  return all;
}

std::vector<Rung> Pool::rungs_with(const std::vector<std::shared_ptr<ReclaimClient>>& asked) {
  std::vector<Rung> all = own_rungs_;
  for (const auto& client : asked) {
    // Asked twice: for what is needed, then, if that did not make one run, for all it has.
    const RungId kind = std::max(client->kind(), RungId::derived_cache);
    const auto estimate = [client](Need&) { return client->estimate(); };
    const auto ask = [&](const std::string& name, auto reclaim) {
      all.push_back({kind, name, estimate, reclaim, true, false});
    };
    ask(client->name(), [client](Need& need) { return client->reclaim(need.size); });
    ask(client->name() + ", all of it", [client](Need&) { return client->reclaim(SIZE_MAX); });
  }
  all.push_back({RungId::callback, std::string(to_string(RungId::callback)),
                 [this](Need&) -> std::size_t {
                   const std::lock_guard lock(mutex_);
                   return out_of_memory_callback_ ? 1 : 0;
                 },
                 [this](Need& need) { return ask_user(need); }, false});
  return all;
}

std::size_t Pool::ask_user(Need& need) {
  OutOfMemoryCallback callback;
  {
    const std::lock_guard lock(mutex_);
    callback = out_of_memory_callback_;
  }
  constexpr int most_attempts = 8;
  return callback && need.attempts < most_attempts && callback(need.requested, need.attempts++) ? 1 : 0;
}

std::vector<Yield> Pool::climb(Need& need) {
  if (decays_) {
    Lock lock(mutex_);
    if (decay_is_due()) release_decayed(lock);
  }
  const auto observe = [this](const Rung& rung, std::size_t bytes, std::uint64_t nanoseconds) {
    {
      const std::lock_guard lock(mutex_);
      RungStatistics& statistics = statistics_of(rung.id);
      statistics.bytes += bytes;
      statistics.runs += 1;
      statistics.nanoseconds += nanoseconds;
    }
    record(
        {.address = nanoseconds, .size = bytes, .kind = TraceKind::rung, .rung = static_cast<std::uint8_t>(rung.id)});
  };
  const auto search_again = [this](Need& n) { search(n); };
  if (!need.may_reclaim) return EmergencyLadder::climb(own_rungs_, need, search_again, observe);
  const auto asked = clients(need.priority);
  if (asked.empty()) return EmergencyLadder::climb(rungs_without_clients_, need, search_again, observe);
  return EmergencyLadder::climb(rungs_with(asked), need, search_again, observe);
}

RungStatistics& Pool::statistics_of(RungId rung) {
  auto& rungs = statistics_.rungs;
  for (std::size_t i = rungs.size(); i < rung_count; ++i) {
    rungs.push_back({.name = std::string(to_string(static_cast<RungId>(i)))});
  }
  return rungs[static_cast<std::size_t>(rung)];
}

std::size_t Pool::other_streams_bytes(Stream stream) const {
  std::size_t bytes = 0;
  for (const Arena& arena : arenas_) bytes += arena.free_bytes() - arena.free_bytes(stream.id);
  return bytes;
}

std::size_t Pool::wait_for_other_threads() {
  Lock lock(mutex_);
  const std::uint64_t all_of_them = device_calls_ended_ + device_calls_;
  mutex_.wait(device_calls_done_, [&] { return device_calls_ended_ >= all_of_them || device_calls_ == 0; });
  return 1;
}

std::size_t Pool::borrow(Need& need) {
  Lock lock(mutex_);
  Arena& other = arenas_[is_long_lived(need.tag.category) ? 0 : 1];
  need.block = other.take(need.size, need.alignment, need.stream.id);
  if (need.block == nullptr) take_from_other_streams(lock, need, other);
  if (need.block == nullptr) take_across_streams(lock, need, other);
  return need.block == nullptr ? 0 : need.block->size;
}

}  // namespace poolgrad
