#include "allocator/pool/reclaim_policy.h"

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
thread_local std::size_t forbidden_level = reclaim_stage_count;

std::size_t level(ReclaimStageId stage) {
  return static_cast<std::size_t>(stage == ReclaimStageId::rematerialise ? ReclaimStageId::offload : stage);
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

ReclaimLoop::Running::Running(ReclaimStageId stage) : previous_(forbidden_level) {
  forbidden_level = std::min(forbidden_level, level(stage));
}

ReclaimLoop::Running::~Running() { forbidden_level = previous_; }

std::vector<ReclaimResult> ReclaimLoop::reclaim(const std::vector<ReclaimStage>& stages, AllocationAttempt& attempt,
                                                const Search& search, const Observe& observe) {
  std::vector<ReclaimResult> yields(stages.size());
  std::vector<std::size_t> times(stages.size(), 0);
  std::size_t i = 0;
  while (i < stages.size() && level(stages[i].id) < forbidden_level && attempt.block == nullptr) {
    const ReclaimStage& stage = stages[i];
    std::size_t bytes = 0;
    bool doubtful = false;
    {
      const Running running(stage.id);
      if (times[i] < stages.size() && stage.estimate(attempt) != 0) {
        const auto start = std::chrono::steady_clock::now();
        bytes = stage.run(attempt);
        doubtful = bytes == 0 && !stage.trusted;
        const std::uint64_t nanoseconds = nanoseconds_since(start);
        ++yields[i].runs;
        yields[i].nanoseconds += nanoseconds;
        if (stage.yields) yields[i].bytes += bytes;
        observe(stage, stage.yields ? bytes : 0, nanoseconds);
      }
    }
    if (bytes == 0 && !doubtful) {
      ++i;
      continue;
    }
    times[i] = doubtful ? stages.size() : times[i] + 1;
    if (attempt.block == nullptr) search(attempt);
    i = 0;
  }
  if (attempt.block != nullptr) return {};
  for (std::size_t stage = 0; stage < stages.size(); ++stage) yields[stage].stage = stages[stage].name;
  return yields;
}

ReclaimPolicy::ReclaimPolicy(PoolContext& context, Arenas& arenas, StreamTracker& tracker, ThreadCaches& caches,
                             PageProvider& pages, CacheTrimmer& trimmer)
    : context_(context), arenas_(arenas), tracker_(tracker), caches_(caches), pages_(pages), trimmer_(trimmer) {}

void ReclaimPolicy::search(AllocationAttempt& attempt) {
  const PoolLock lock(context_.mutex);
  attempt.block = arenas_.of(attempt.tag).take(attempt.size, attempt.alignment, attempt.stream.id);
}

void ReclaimPolicy::add_client(std::weak_ptr<ReclaimClient> client) {
  {
    const auto known = client.lock();
    if (known == nullptr)
      throw ValueError(
          "[add_client] the client is null or destroyed: the pool does not own it, so the caller must keep it");
    if (const double nanoseconds = known->price_per_byte(); !is_price(nanoseconds))
      throw ValueError("[add_client] the price of " + known->name() + " is " + std::to_string(nanoseconds) +
                       " nanoseconds a byte: price_per_byte() must be finite and not negative");
    if (const ReclaimStageId kind = known->kind();
        kind < ReclaimStageId::derived_cache || kind > ReclaimStageId::rematerialise)
      throw ValueError("[add_client] the kind of " + known->name() + " is '" + std::string(to_string(kind)) +
                       "': kind() must be derived_cache, offload or rematerialise");
  }
  const PoolLock lock(context_.mutex);
  std::erase_if(clients_, [](const auto& known) { return known.expired(); });
  clients_.push_back(std::move(client));
}

void ReclaimPolicy::set_callback(OutOfMemoryCallback callback) {
  std::shared_ptr<const OutOfMemoryCallback> other;
  if (callback) other = std::make_shared<const OutOfMemoryCallback>(std::move(callback));
  const PoolLock lock(context_.mutex);
  callback_.swap(other);  // the old callback may hold memory of the pool: destroy it without the mutex
}

ReclaimPolicy::Clients ReclaimPolicy::clients(double most) const {
  if (forbidden_level <= level(ReclaimStageId::derived_cache)) return {};
  Clients known;
  {
    const PoolLock lock(context_.mutex);
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
    const ReclaimLoop::Running running(ReclaimStageId::derived_cache);
    const double its_price = price(*client);
    if (its_price > most) continue;
    offers.push_back({{client->kind() > ReclaimStageId::derived_cache, its_price}, std::move(client)});
  }
  std::ranges::stable_sort(offers, {}, &Offer::place);
  Clients asked;
  for (Offer& offer : offers) asked.push_back(std::move(offer.client));
  return asked;
}

std::vector<ReclaimStage> ReclaimPolicy::own_stages() {
  std::vector<ReclaimStage> all;
  const auto add = [&](ReclaimStageId id, auto estimate, auto run, bool yields = true) {
    all.push_back({id, std::string(to_string(id)),
                   [this, estimate](AllocationAttempt& attempt) -> std::size_t {
                     const PoolLock lock(context_.mutex);
                     return estimate(attempt);
                   },
                   [this, run](AllocationAttempt& attempt) -> std::size_t {
                     PoolLock lock(context_.mutex);
                     return run(lock, attempt);
                   },
                   yields});
  };
  const auto pending = [this](AllocationAttempt&) { return tracker_.pending_bytes(); };
  const auto others = [this](AllocationAttempt& attempt) {
    return arenas_.free_elsewhere(attempt.stream.id) + tracker_.pending_bytes();
  };
  const auto unfinished = [this, others](AllocationAttempt& attempt) {
    return tracker_.has_events() ? others(attempt) : tracker_.pending_bytes();
  };
  add(ReclaimStageId::poll, unfinished,
      [this](PoolLock& lock, AllocationAttempt&) { return tracker_.poll_pending(lock); });
  add(ReclaimStageId::other_streams, others, [this](PoolLock& lock, AllocationAttempt& attempt) {
    return tracker_.take_from_other_streams(lock, attempt, arenas_.of(attempt.tag));
  });
  add(
      ReclaimStageId::magazines, [this](AllocationAttempt&) { return caches_.magazine_bytes(); },
      [this](PoolLock&, AllocationAttempt&) { return caches_.drain_all(); });
  add(ReclaimStageId::coalesce, others, [this](PoolLock& lock, AllocationAttempt& attempt) {
    return tracker_.take_across_streams(lock, attempt, arenas_.of(attempt.tag));
  });
  // Comes first only if commit would fail or too much memory is idle.
  add(
      ReclaimStageId::stitch, [this](AllocationAttempt& attempt) { return pages_.stitchable_bytes(attempt); },
      [this](PoolLock& lock, AllocationAttempt& attempt) { return pages_.stitch(lock, attempt); });
  add(
      ReclaimStageId::commit, [](AllocationAttempt& attempt) { return attempt.size; },
      [this](PoolLock& lock, AllocationAttempt& attempt) { return pages_.commit(lock, attempt); });
  add(
      ReclaimStageId::release, [this](AllocationAttempt&) { return arenas_.releasable_bytes(1); },
      [this](PoolLock& lock, AllocationAttempt& attempt) { return trimmer_.release_for(lock, attempt); });
  add(ReclaimStageId::synchronise, pending,
      [this](PoolLock& lock, AllocationAttempt&) { return tracker_.synchronise_pending(lock); });
  add(
      ReclaimStageId::borrow, [this](AllocationAttempt&) { return arenas_.free_bytes(); },
      [this](PoolLock& lock, AllocationAttempt& attempt) { return borrow(lock, attempt); });
  // Earlier stages may have missed memory that other threads freed or released since the last look at the budget.
  add(
      ReclaimStageId::wait,
      [this](AllocationAttempt& attempt) {
        return context_.mutex.calls_under_way() + (context_.mutex.calls_ended() - attempt.device_calls_seen) +
               (context_.accounts.allocation.freed - attempt.frees_seen);
      },
      [](PoolLock& lock, AllocationAttempt&) {
        lock.wait_for_calls();
        return std::size_t{1};
      },
      false);
  return all;
}

std::optional<std::size_t> ReclaimPolicy::call(const ReclaimClient& client, std::vector<std::string>& remarks,
                                               const std::function<std::size_t()>& f) {
  std::string why;
  try {
    const ReclaimLoop::Running running(client.kind());
    return f();
  } catch (const std::exception& error) {
    why = first_line(error.what());
  } catch (...) {
    why = "an exception other than std::exception";
  }
  remark(remarks, client.name() + " failed: " + why);
  const PoolLock lock(context_.mutex);
  ++context_.accounts.num_client_failures;
  return std::nullopt;
}

std::size_t ReclaimPolicy::held_by(ReclaimClient& client, std::vector<std::string>& remarks) {
  return call(client, remarks, [&] { return client.estimate(); }).value_or(0);
}

std::optional<std::size_t> ReclaimPolicy::ask(ReclaimClient& client, std::size_t bytes,
                                              std::vector<std::string>& remarks) {
  const auto given_back = [this] {
    const PoolLock lock(context_.mutex);
    const StopTheWorld stopped(caches_);
    return context_.accounts.allocated_bytes.freed;
  };
  const std::uint64_t before = given_back();
  const std::optional<std::size_t> said = call(client, remarks, [&] { return client.reclaim(bytes); });
  if (!said) return std::nullopt;
  const std::size_t counted = given_back() - before;
  if (*said > counted)
    remark(remarks, client.name() + " claimed to free " + format_bytes(*said) + ", but freed " + format_bytes(counted));
  return std::min(*said, counted);
}

bool ReclaimPolicy::may_fit(std::size_t bytes, const Clients& asked, std::vector<std::string>& remarks,
                            std::optional<std::size_t> budget) {
  std::size_t promised = 0;
  for (const auto& client : asked) promised += std::min(held_by(*client, remarks), SIZE_MAX - promised);
  const PoolLock lock(context_.mutex);
  const StopTheWorld stopped(caches_);
  const std::size_t live = context_.accounts.requested_bytes.current, most = budget.value_or(pages_.budget());
  return bytes <= most && live - std::min(live, promised) <= most - bytes;
}

std::vector<ReclaimStage> ReclaimPolicy::stages_with(const Clients& asked) {
  std::vector<ReclaimStage> all = own_stages_;
  for (const auto& client : asked) {
    const auto has_thrown = std::make_shared<bool>(false);  // then ask the next client instead
    // Clients free nothing for a request that cannot be served anyway.
    const auto estimate = [this, client, asked, has_thrown](AllocationAttempt& attempt) -> std::size_t {
      if (*has_thrown) return 0;
      const std::size_t held = held_by(*client, attempt.remarks);
      if (held == 0 || may_fit(attempt.size, asked, attempt.remarks)) return held;
      remark(attempt.remarks, "clients were not asked: the request would not fit even without their memory");
      return 0;
    };
    // Ask twice: for the needed bytes, then, if they are not contiguous, for all.
    const auto add = [&](const std::string& name, bool all_of_it) {
      const auto run = [this, client, all_of_it, has_thrown](AllocationAttempt& attempt) {
        const std::optional<std::size_t> given = ask(*client, all_of_it ? SIZE_MAX : attempt.size, attempt.remarks);
        *has_thrown = !given;
        return given.value_or(0);
      };
      all.push_back({client->kind(), name, estimate, run, true, false});
    };
    add(client->name(), false);
    add(client->name() + ", all of it", true);
  }
  if (!asked.empty()) all.push_back(last_resort_stage(asked));
  all.push_back({ReclaimStageId::callback, std::string(to_string(ReclaimStageId::callback)),
                 [this](AllocationAttempt&) -> std::size_t {
                   const PoolLock lock(context_.mutex);
                   return callback_ != nullptr ? 1 : 0;
                 },
                 [this](AllocationAttempt& attempt) { return ask_user(attempt); }, false});
  return all;
}

// Asking clients that report 0 costs nothing if they are right.
ReclaimStage ReclaimPolicy::last_resort_stage(const Clients& asked) {
  const auto claims_nothing = [this](AllocationAttempt& attempt) {
    return [this, &attempt](const auto& client) { return held_by(*client, attempt.remarks) == 0; };
  };
  const auto estimate = [this, asked, claims_nothing](AllocationAttempt& attempt) -> std::size_t {
    {
      const PoolLock lock(context_.mutex);
      if (attempt.size > pages_.budget()) return 0;
    }
    return std::ranges::any_of(asked, claims_nothing(attempt)) ? attempt.size : 0;
  };
  const auto run = [this, asked, claims_nothing](AllocationAttempt& attempt) {
    std::size_t freed = 0;
    for (const auto& client : asked) {
      if (freed < attempt.size && claims_nothing(attempt)(client))
        freed += ask(*client, attempt.size - freed, attempt.remarks).value_or(0);
    }
    return freed;
  };
  return {ReclaimStageId::derived_cache, "clients with estimate 0", estimate, run, true, false};
}

std::size_t ReclaimPolicy::ask_user(AllocationAttempt& attempt) {
  std::shared_ptr<const OutOfMemoryCallback> callback;
  {
    const PoolLock lock(context_.mutex);
    callback = callback_;
  }
  constexpr int most_attempts = 8;
  const bool may_ask = callback != nullptr && attempt.attempts < most_attempts;
  return may_ask && (*callback)(attempt.requested, attempt.attempts++) ? 1 : 0;
}

std::vector<ReclaimResult> ReclaimPolicy::reclaim(AllocationAttempt& attempt) {
  if (context_.settings.decays) {
    PoolLock lock(context_.mutex);
    trimmer_.release_decayed(lock);
  }
  const auto observe = [&](const ReclaimStage& stage, std::size_t bytes, std::uint64_t nanoseconds) {
    {
      const PoolLock lock(context_.mutex);
      context_.accounts.ran(stage.id, bytes, nanoseconds);
    }
    context_.recorder.record({.address = nanoseconds,
                              .size = bytes,
                              .stream = context_.recorder.stream_index(attempt.stream.id),
                              .kind = TraceKind::stage,
                              .stage = static_cast<std::uint8_t>(stage.id)});
  };
  const auto search_again = [this](AllocationAttempt& n) { search(n); };
  if (!attempt.may_reclaim) return ReclaimLoop::reclaim(own_stages_, attempt, search_again, observe);
  const auto asked = clients(attempt.priority);
  if (asked.empty()) return ReclaimLoop::reclaim(stages_without_clients_, attempt, search_again, observe);
  return ReclaimLoop::reclaim(stages_with(asked), attempt, search_again, observe);
}

std::size_t ReclaimPolicy::borrow(PoolLock& lock, AllocationAttempt& attempt) {
  Arena& other = arenas_.other_than(attempt.tag);
  attempt.block = other.take(attempt.size, attempt.alignment, attempt.stream.id);
  if (attempt.block == nullptr) tracker_.take_from_other_streams(lock, attempt, other);
  if (attempt.block == nullptr) tracker_.take_across_streams(lock, attempt, other);
  return attempt.block == nullptr ? 0 : attempt.block->size;
}

void ReclaimPolicy::empty_derived_caches() {
  std::vector<std::string> remarks;
  for (const auto& client : clients(std::numeric_limits<double>::infinity())) {
    if (client->kind() == ReclaimStageId::derived_cache) ask(*client, SIZE_MAX, remarks);
  }
}

std::vector<std::string> ReclaimPolicy::press_pinned_below(std::size_t wanted) {
  std::vector<std::string> remarks;
  const auto excess = [&] {
    PoolLock lock(context_.mutex);
    caches_.drain_all();
    tracker_.poll_pending(lock);
    tracker_.synchronise_pending(lock);
    const std::size_t pinned = trimmer_.pinned_bytes();
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
