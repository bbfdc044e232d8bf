#include "allocator/pool/ladder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace poolgrad {

namespace {

// The level of the lowest rung that this thread may not use: none, or that of the rung that it is running.
thread_local std::size_t forbidden_level = rung_count;

std::size_t level(RungId rung) {
  return static_cast<std::size_t>(rung == RungId::rematerialise ? RungId::offload : rung);
}

std::uint64_t nanoseconds_since(std::chrono::steady_clock::time_point start) {
  const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - start;
  return static_cast<std::uint64_t>(passed.count());
}

// A client that does not know its price is asked last.
double price(const ReclaimClient& client) {
  const double nanoseconds = client.price_per_byte();
  return std::isnan(nanoseconds) ? std::numeric_limits<double>::infinity() : nanoseconds;
}

}  // namespace

EmergencyLadder::Running::Running(RungId rung) : previous_(forbidden_level) {
  forbidden_level = std::min(forbidden_level, level(rung));
}

EmergencyLadder::Running::~Running() { forbidden_level = previous_; }

std::vector<Yield> EmergencyLadder::climb(const std::vector<Rung>& rungs, Need& need, const Search& search,
                                          const Observe& observe) {
  std::vector<Yield> yields(rungs.size());
  std::vector<std::size_t> times(rungs.size(), 0);
  std::size_t i = 0;
  while (i < rungs.size() && level(rungs[i].id) < forbidden_level && need.block == nullptr) {
    const Rung& rung = rungs[i];
    std::size_t bytes = 0;
    bool doubtful = false;
    {
      const Running running(rung.id);
      if (times[i] < rungs.size() && rung.estimate(need) != 0) {
        const auto start = std::chrono::steady_clock::now();
        bytes = rung.run(need);
        doubtful = bytes == 0 && !rung.trusted;
        const std::uint64_t nanoseconds = nanoseconds_since(start);
        ++yields[i].runs;
        yields[i].nanoseconds += nanoseconds;
        if (rung.yields) yields[i].bytes += bytes;
        observe(rung, rung.yields ? bytes : 0, nanoseconds);
      }
    }
    if (bytes == 0 && !doubtful) {
      ++i;
      continue;
    }
    times[i] = doubtful ? rungs.size() : times[i] + 1;
    if (need.block == nullptr) search(need);
    i = 0;
  }
  if (need.block != nullptr) return {};
  for (std::size_t rung = 0; rung < rungs.size(); ++rung) yields[rung].rung = rungs[rung].name;
  return yields;
}

Ladder::Ladder(Ground& ground, Arenas& arenas, StreamLedger& ledger, Front& front, PageSupply& pages,
               Releaser& releaser)
    : ground_(ground), arenas_(arenas), ledger_(ledger), front_(front), pages_(pages), releaser_(releaser) {}

void Ladder::search(Need& need) {
  const PoolLock lock(ground_.mutex);
  need.block = arenas_.of(need.tag).take(need.size, need.alignment, need.stream.id);
}

void Ladder::add_client(std::weak_ptr<ReclaimClient> client) {
  const PoolLock lock(ground_.mutex);
  std::erase_if(clients_, [](const auto& known) { return known.expired(); });
  clients_.push_back(std::move(client));
}

void Ladder::set_callback(OutOfMemoryCallback callback) {
  const PoolLock lock(ground_.mutex);
  callback_ = std::move(callback);
}

std::vector<std::shared_ptr<ReclaimClient>> Ladder::clients(double most) const {
  std::vector<std::shared_ptr<ReclaimClient>> asked;
  {
    const PoolLock lock(ground_.mutex);
    for (const auto& known : clients_) {
      if (auto client = known.lock()) asked.push_back(std::move(client));
    }
  }
  std::erase_if(asked, [&](const auto& client) { return price(*client) > most; });
  std::ranges::stable_sort(
      asked, {}, [](const auto& client) { return std::pair(client->kind() > RungId::derived_cache, price(*client)); });
  return asked;
}

std::vector<Rung> Ladder::own_rungs() {
  std::vector<Rung> all;
  const auto add = [&](RungId id, auto estimate, auto run, bool yields = true) {
    all.push_back({id, std::string(to_string(id)),
                   [this, estimate](Need& need) -> std::size_t {
                     const PoolLock lock(ground_.mutex);
                     return estimate(need);
                   },
                   [this, run](Need& need) -> std::size_t {
                     PoolLock lock(ground_.mutex);
                     return run(lock, need);
                   },
                   yields});
  };
  const auto pending = [this](Need&) { return ledger_.pending_bytes(); };
  const auto others = [this](Need& need) { return arenas_.free_elsewhere(need.stream.id) + ledger_.pending_bytes(); };
  const auto unfinished = [this, others](Need& need) {
    return ledger_.has_events() ? others(need) : ledger_.pending_bytes();
  };
  add(RungId::poll, unfinished, [this](PoolLock& lock, Need&) { return ledger_.poll_pending(lock); });
  add(RungId::other_streams, others,
      [this](PoolLock& lock, Need& need) { return ledger_.take_from_other_streams(lock, need, arenas_.of(need.tag)); });
  add(
      RungId::magazines, [this](Need&) { return front_.magazine_bytes(); },
      [this](PoolLock&, Need&) { return front_.drain_all(); });
  add(RungId::coalesce, others,
      [this](PoolLock& lock, Need& need) { return ledger_.take_across_streams(lock, need, arenas_.of(need.tag)); });
  // First only where commit would fail or too much lies idle.
  add(
      RungId::stitch, [this](Need& need) { return pages_.stitchable_bytes(need); },
      [this](PoolLock& lock, Need& need) { return pages_.stitch(lock, need); });
  add(
      RungId::commit, [](Need& need) { return need.size; },
      [this](PoolLock& lock, Need& need) { return pages_.commit(lock, need); });
  add(
      RungId::release, [this](Need&) { return arenas_.releasable_bytes(1); },
      [this](PoolLock& lock, Need& need) { return releaser_.release_for(lock, need); });
  add(RungId::synchronise, pending, [this](PoolLock& lock, Need&) { return ledger_.synchronise_pending(lock); });
  add(
      RungId::borrow, [this](Need&) { return arenas_.free_bytes(); },
      [this](PoolLock& lock, Need& need) { return borrow(lock, need); });
  // What others have given back, or back to the device, since the budget was last looked at, the rungs below may have
  // missed.
  add(
      RungId::wait,
      [this](Need& need) {
        return ground_.mutex.calls_under_way() + (ground_.mutex.calls_ended() - need.device_calls_seen) +
               (ground_.accounts.allocation.freed - need.frees_seen);
      },
      [](PoolLock& lock, Need&) {
        lock.wait_for_calls();
        return std::size_t{1};
      },
      false);
  return all;
}

std::vector<Rung> Ladder::rungs_with(const std::vector<std::shared_ptr<ReclaimClient>>& asked) {
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
                   const PoolLock lock(ground_.mutex);
                   return callback_ ? 1 : 0;
                 },
                 [this](Need& need) { return ask_user(need); }, false});
  return all;
}

std::size_t Ladder::ask_user(Need& need) {
  OutOfMemoryCallback callback;
  {
    const PoolLock lock(ground_.mutex);
    callback = callback_;
  }
  constexpr int most_attempts = 8;
  return callback && need.attempts < most_attempts && callback(need.requested, need.attempts++) ? 1 : 0;
}

std::vector<Yield> Ladder::climb(Need& need) {
  if (ground_.settings.decays) {
    PoolLock lock(ground_.mutex);
    releaser_.release_decayed(lock);
  }
  const auto observe = [this](const Rung& rung, std::size_t bytes, std::uint64_t nanoseconds) {
    {
      const PoolLock lock(ground_.mutex);
      ground_.accounts.ran(rung.id, bytes, nanoseconds);
    }
    ground_.recorder.record(
        {.address = nanoseconds, .size = bytes, .kind = TraceKind::rung, .rung = static_cast<std::uint8_t>(rung.id)});
  };
  const auto search_again = [this](Need& n) { search(n); };
  if (!need.may_reclaim) return EmergencyLadder::climb(own_rungs_, need, search_again, observe);
  const auto asked = clients(need.priority);
  if (asked.empty()) return EmergencyLadder::climb(rungs_without_clients_, need, search_again, observe);
  return EmergencyLadder::climb(rungs_with(asked), need, search_again, observe);
}

std::size_t Ladder::borrow(PoolLock& lock, Need& need) {
  Arena& other = arenas_.other_than(need.tag);
  need.block = other.take(need.size, need.alignment, need.stream.id);
  if (need.block == nullptr) ledger_.take_from_other_streams(lock, need, other);
  if (need.block == nullptr) ledger_.take_across_streams(lock, need, other);
  return need.block == nullptr ? 0 : need.block->size;
}

void Ladder::empty_derived_caches() {
  if (forbidden_level <= level(RungId::derived_cache)) return;
  for (const auto& client : clients(std::numeric_limits<double>::infinity())) {
    if (client->kind() > RungId::derived_cache) continue;
    const EmergencyLadder::Running running(RungId::derived_cache);
    client->reclaim(SIZE_MAX);
  }
}

void Ladder::press_pinned_below(std::size_t wanted) {
  const auto excess = [&] {
    PoolLock lock(ground_.mutex);
    front_.drain_all();
    ledger_.poll_pending(lock);
    ledger_.synchronise_pending(lock);
    const std::size_t pinned = releaser_.pinned_bytes();
    return pinned > wanted ? pinned - wanted : 0;
  };
  std::size_t left = excess();
  if (left == 0) return;
  for (const auto& client : clients(std::numeric_limits<double>::infinity())) {
    const EmergencyLadder::Running running(std::max(client->kind(), RungId::derived_cache));
    // For what is needed, then, as its blocks may share pages with others, for all it has.
    for (const bool all : {false, true}) {
      if (left == 0) return;
      if (client->estimate() == 0 || client->reclaim(all ? SIZE_MAX : left) == 0) break;
      left = excess();
    }
  }
}

}  // namespace poolgrad
