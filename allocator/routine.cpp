#include "allocator/routine.h"

#include <algorithm>
#include <new>

namespace poolgrad {

namespace {

std::uint64_t hash_of(const Routine::Act& act) {
  std::uint64_t hash = (act.address ^ std::rotl(act.what, 32)) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

}  // namespace

bool Routine::grow() noexcept {
  const std::uint64_t size = acts_.empty() ? least_acts : 2 * acts_.size();
  capacity_ = std::clamp<std::uint64_t>(std::bit_floor(most_bytes_ / (sizeof(Act) + sizeof(std::uint32_t))), least_acts,
                                        most_acts);
  if (size > capacity_) return false;
  try {
    std::vector<Act> acts(size);
    std::vector<std::uint32_t> latest(size);
    for (std::uint64_t position = here_ - std::min<std::uint64_t>(here_ - 1, acts_.size()); position < here_;
         ++position) {
      const Act& act = acts[position & (size - 1)] = at(position);
      latest[hash_of(act) & (size - 1)] = static_cast<std::uint32_t>(position);
    }
    acts_.swap(acts);
    latest_.swap(latest);
  } catch (const std::bad_alloc&) {
    return false;
  }
  mask_ = size - 1;
  patience_ += static_cast<std::int64_t>(2 * size);  // what is longer takes longer to find
  return true;
}

void Routine::append(const Act& act) noexcept {
  if (here_ > acts_.size() && !grow() && acts_.empty()) return;
  at(here_) = act;
  latest_[hash_of(act) & mask_] = static_cast<std::uint32_t>(here_);
  ++here_;
}

void Routine::match(const Act& act) noexcept {
  if (match_ != 0 && is_kept(match_) && at(match_) == act) {
    ++match_;
    ++run_;
    return;
  }
  match_ = run_ = 0;
  if (acts_.empty()) return;
  const std::uint32_t low = latest_[hash_of(act) & mask_];
  const std::uint64_t position = here_ - (static_cast<std::uint32_t>(here_) - low);
  if (low == 0 || position >= here_ || !is_kept(position) || at(position) != act) return;
  match_ = position + 1;
  run_ = 1;
}

// The routine ends: what was done of it is history.
void Routine::leave() noexcept {
  // A short routine inside a longer one gives way to it.
  const bool gained = answered_in_all_ > std::max(2 * length_, 16 * least_run);
  least_run_ = std::clamp(gained ? least_run_ / 2 : 2 * least_run_, least_run, std::max(capacity_ / 2, least_run));
  patience_ = std::min(static_cast<std::int64_t>(4 * capacity_),
                       patience_ + static_cast<std::int64_t>(std::min<std::uint64_t>(answered_in_all_, 4 * capacity_)) -
                           static_cast<std::int64_t>(length_));
  for (std::uint64_t i = 0; i < cursor_; ++i) append(Act(at(first_ + i)));
  match_ = here_ - length_;
  length_ = cursor_ = answered_in_all_ = 0;
}

bool Routine::observe(const Act& act, Stream stream, std::uint64_t before, std::uint64_t after) noexcept {
  const bool undisturbed = before == changes_ && stream == stream_;
  changes_ = after;
  if (length_ != 0) {
    if (undisturbed && at(first_ + cursor_) == act) {
      if (++cursor_ == length_) cursor_ = 0;
      return true;
    }
    leave();
  }
  stream_ = stream;
  --patience_;
  if (!undisturbed) {
    since_ = here_;
    match_ = run_ = 0;
  }
  match(act);
  append(act);
  const std::uint64_t distance = here_ - match_;
  if (match_ == 0 || run_ < std::max(distance, least_run_) || here_ - since_ < 2 * distance ||
      2 * distance > acts_.size()) {
    return false;
  }
  length_ = distance;
  first_ = here_ - distance;
  cursor_ = 0;
  patience_ += static_cast<std::int64_t>(length_);  // leave() takes it back
  catch_up_after_ = std::max(std::uint64_t{1} << 16, 64 * length_);
  return true;
}

bool Routine::attentive(std::uint64_t now, std::size_t bytes) noexcept {
  most_bytes_ = bytes;
  if (patience_ > 0) return true;
  if (patience_ == 0 && rests_until_ == 0) rests_until_ = now;  // the beginning
  if (patience_ < 0 || !acts_.empty()) {
    // What was observed so often without a routine does not have one.
    rests_until_ = now + 64 * capacity_;
    forget();
  }
  if (now < rests_until_) return false;
  patience_ = static_cast<std::int64_t>(4 * capacity_);
  disturb();
  return true;
}

void Routine::forget() noexcept {
  std::vector<Act>().swap(acts_);
  std::vector<std::uint32_t>().swap(latest_);
  first_ = cursor_ = length_ = answered_ = answered_in_all_ = match_ = run_ = 0;
  here_ = since_ = 1;
  least_run_ = least_run;
  patience_ = 0;
  disturb();
}

}  // namespace poolgrad
