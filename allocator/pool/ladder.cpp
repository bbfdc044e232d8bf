#include "allocator/pool/ladder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>

#include "allocator/error.h"

namespace poolgrad {

namespace {

// The level of the lowest stage that this thread must not use: none, or that of the running stage.
thread_local std::size_t forbidden_level = rung_count;

std::size_t level(RungId rung) {
  return static_cast<std::size_t>(rung == RungId::rematerialise ? RungId::offload : rung);
}

std::uint64_t nanoseconds_since(std::chrono::steady_clock::time_point start) {
  const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - start;
  return static_cast<std::uint64_t>(passed.count());
}

bool is_price(double nanoseconds) { return nanoseconds >= 0 && std::isfinite(nanoseconds); }

// A client whose price throws is asked last.
double price(const ReclaimClient& client) {
  const double nanoseconds = client.price_per_byte();
  return is_price(nanoseconds) ? nanoseconds : std::numeric_limits<double>::infinity();
}

// Adds a remark once, however often it occurs.
void remark(std::vector<std::string>& remarks, std::string text) {
  if (std::ranges::find(remarks, text) == remarks.end()) remarks.push_back(std::move(text));
}

std::string first_line(const char* text) { return std::string(text, std::strcspn(text, "\n")); }

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
  {
    const auto known = client.lock();
    if (known == nullptr)
      throw ValueError(
          "[add_client] the client is null or destroyed: the pool does not own it, so the caller must keep it");
    if (const double nanoseconds = known->price_per_byte(); !is_price(nanoseconds))
      throw ValueError("[add_client] the price of " + known->name() + " is " + std::to_string(nanoseconds) +
                       " nanoseconds a byte: price_per_byte() must be finite and not negative");
    if (const RungId kind = known->kind(); kind < RungId::derived_cache || kind > RungId::rematerialise)
      throw ValueError("[add_client] the kind of " + known->name() + " is '" + std::string(to_string(kind)) +
                       "': kind() must be derived_cache, offload or rematerialise");
  }
  const PoolLock lock(ground_.mutex);
  std::erase_if(clients_, [](const auto& known) { return known.expired(); });
  clients_.push_back(std::move(client));
}

void Ladder::set_callback(OutOfMemoryCallback callback) {
  std::shared_ptr<const OutOfMemoryCallback> other;
  if (callback) other = std::make_shared<const OutOfMemoryCallback>(std::move(callback));
  const PoolLock lock(ground_.mutex);
  callback_.swap(other);  // the old callback may hold memory of the pool: destroy it without the mutex
}

Ladder::Clients Ladder::clients(double most) const {
  if (forbidden_level <= level(RungId::derived_cache)) return {};
  Clients known;
  {
    const PoolLock lock(ground_.mutex);
    for (const auto& one : clients_) {
      if (auto client = one.lock()) known.push_back(std::move(client));
    }
  }
  // Ask each once: the price may change between calls.
  struct Offer {
    std::pair<bool, double> place;
    std::shared_ptr<ReclaimClient> client;
  };
  std::vector<Offer> offers;
  for (auto& client : known) {
    const EmergencyLadder::Running running(RungId::derived_cache);
    const double its_price = price(*client);
    if (its_price > most) continue;
    offers.push_back({{client->kind() > RungId::derived_cache, its_price}, std::move(client)});
  }
  std::ranges::stable_sort(offers, {}, &Offer::place);
  Clients asked;
  for (Offer& offer : offers) asked.push_back(std::move(offer.client));
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
  // Comes first only if commit would fail or too much memory is idle.
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
  // Earlier stages may have missed memory that other threads freed or released since the last look at the budget.
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

std::optional<std::size_t> Ladder::call(const ReclaimClient& client, std::vector<std::string>& remarks,
                                        const std::function<std::size_t()>& f) {
  std::string why;
  try {
    const EmergencyLadder::Running running(client.kind());
    return f();
  } catch (const std::exception& error) {
    why = first_line(error.what());
  } catch (...) {
    why = "an exception other than std::exception";
  }
  remark(remarks, client.name() + " failed: " + why);
  const PoolLock lock(ground_.mutex);
  ++ground_.accounts.num_client_failures;
  return std::nullopt;
}

std::size_t Ladder::held_by(ReclaimClient& client, std::vector<std::string>& remarks) {
  return call(client, remarks, [&] { return client.estimate(); }).value_or(0);
}

std::optional<std::size_t> Ladder::ask(ReclaimClient& client, std::size_t bytes, std::vector<std::string>& remarks) {
  const auto given_back = [this] {
    const PoolLock lock(ground_.mutex);
    const Standstill standstill(front_);
    return ground_.accounts.allocated_bytes.freed;
  };
  const std::uint64_t before = given_back();
  const std::optional<std::size_t> said = call(client, remarks, [&] { return client.reclaim(bytes); });
  if (!said) return std::nullopt;
  const std::size_t counted = given_back() - before;
  if (*said > counted)
    remark(remarks, client.name() + " claimed to free " + format_bytes(*said) + ", but freed " + format_bytes(counted));
  return std::min(*said, counted);
}

bool Ladder::may_fit(std::size_t bytes, const Clients& asked, std::vector<std::string>& remarks,
                     std::optional<std::size_t> budget) {
  std::size_t promised = 0;
  for (const auto& client : asked) promised += std::min(held_by(*client, remarks), SIZE_MAX - promised);
  const PoolLock lock(ground_.mutex);
  const Standstill standstill(front_);
  const std::size_t live = ground_.accounts.requested_bytes.current, most = budget.value_or(pages_.budget());
  return bytes <= most && live - std::min(live, promised) <= most - bytes;
}

std::vector<Rung> Ladder::rungs_with(const Clients& asked) {
  std::vector<Rung> all = own_rungs_;
  for (const auto& client : asked) {
    const auto has_thrown = std::make_shared<bool>(false);  // then ask the next client instead
    // Clients free nothing for a request that cannot be served anyway.
    const auto estimate = [this, client, asked, has_thrown](Need& need) -> std::size_t {
      if (*has_thrown) return 0;
      const std::size_t held = held_by(*client, need.remarks);
      if (held == 0 || may_fit(need.size, asked, need.remarks)) return held;
      remark(need.remarks, "clients were not asked: the request would not fit even without their memory");
      return 0;
    };
    // Ask twice: for the needed bytes, then, if they are not contiguous, for all.
    const auto add = [&](const std::string& name, bool all_of_it) {
      const auto run = [this, client, all_of_it, has_thrown](Need& need) {
        const std::optional<std::size_t> given = ask(*client, all_of_it ? SIZE_MAX : need.size, need.remarks);
        *has_thrown = !given;
        return given.value_or(0);
      };
      all.push_back({client->kind(), name, estimate, run, true, false});
    };
    add(client->name(), false);
    add(client->name() + ", all of it", true);
  }
  if (!asked.empty()) all.push_back(rung_of_those_that_claim_nothing(asked));
  all.push_back({RungId::callback, std::string(to_string(RungId::callback)),
                 [this](Need&) -> std::size_t {
                   const PoolLock lock(ground_.mutex);
                   return callback_ != nullptr ? 1 : 0;
                 },
                 [this](Need& need) { return ask_user(need); }, false});
  return all;
}

// Asking clients that report 0 costs nothing if they are right.
Rung Ladder::rung_of_those_that_claim_nothing(const Clients& asked) {
  const auto claims_nothing = [this](Need& need) {
    return [this, &need](const auto& client) { return held_by(*client, need.remarks) == 0; };
  };
  const auto estimate = [this, asked, claims_nothing](Need& need) -> std::size_t {
    {
      const PoolLock lock(ground_.mutex);
      if (need.size > pages_.budget()) return 0;
    }
    return std::ranges::any_of(asked, claims_nothing(need)) ? need.size : 0;
  };
  const auto run = [this, asked, claims_nothing](Need& need) {
    std::size_t freed = 0;
    for (const auto& client : asked) {
      if (freed < need.size && claims_nothing(need)(client))
        freed += ask(*client, need.size - freed, need.remarks).value_or(0);
    }
    return freed;
  };
  return {RungId::derived_cache, "clients with estimate 0", estimate, run, true, false};
}

std::size_t Ladder::ask_user(Need& need) {
  std::shared_ptr<const OutOfMemoryCallback> callback;
  {
    const PoolLock lock(ground_.mutex);
    callback = callback_;
  }
  constexpr int most_attempts = 8;
  const bool may_ask = callback != nullptr && need.attempts < most_attempts;
  return may_ask && (*callback)(need.requested, need.attempts++) ? 1 : 0;
}

std::vector<Yield> Ladder::climb(Need& need) {
  if (ground_.settings.decays) {
    PoolLock lock(ground_.mutex);
    releaser_.release_decayed(lock);
  }
  const auto observe = [&](const Rung& rung, std::size_t bytes, std::uint64_t nanoseconds) {
    {
      const PoolLock lock(ground_.mutex);
      ground_.accounts.ran(rung.id, bytes, nanoseconds);
    }
    ground_.recorder.record({.address = nanoseconds,
                             .size = bytes,
                             .stream = ground_.recorder.stream_index(need.stream.id),
                             .kind = TraceKind::rung,
                             .rung = static_cast<std::uint8_t>(rung.id)});
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
  std::vector<std::string> remarks;
  for (const auto& client : clients(std::numeric_limits<double>::infinity())) {
    if (client->kind() == RungId::derived_cache) ask(*client, SIZE_MAX, remarks);
  }
}

std::vector<std::string> Ladder::press_pinned_below(std::size_t wanted) {
  std::vector<std::string> remarks;
  const auto excess = [&] {
    PoolLock lock(ground_.mutex);
    front_.drain_all();
    ledger_.poll_pending(lock);
    ledger_.synchronise_pending(lock);
    const std::size_t pinned = releaser_.pinned_bytes();
    return pinned > wanted ? pinned - wanted : 0;
  };
  std::size_t left = excess();
  Clients asked = clients(std::numeric_limits<double>::infinity());
  // A client that lowers the budget asks only clients below it.
  std::erase_if(asked, [](const auto& client) { return level(client->kind()) >= forbidden_level; });
  if (left == 0 || !may_fit(0, asked, remarks, wanted)) return remarks;
  for (const auto& client : asked) {
    // Ask for the needed bytes, then for all, since blocks may share pages with others.
    for (const bool all : {false, true}) {
      if (left == 0) return remarks;
      if (held_by(*client, remarks) == 0 || ask(*client, all ? SIZE_MAX : left, remarks).value_or(0) == 0) break;
      left = excess();
    }
  }
  return remarks;
}

}  // namespace poolgrad
