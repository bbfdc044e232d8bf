#include "allocator/front/routine.h"

#include <algorithm>
#include <new>

namespace poolgrad {

namespace {

// Every act is looked up, one in so many is noted: of what repeats itself, one is met soon. So the table is small
// enough to stay in the cache, and what never repeats costs little.
constexpr std::uint64_t acts_per_note = 8;

std::uint64_t hash_of(const Routine::Act& act) {
  // Addresses in a row would meet others in a row, were they multiplied only once.
  const std::uint64_t what = act.bytes ^ std::uint64_t{act.kind} << 56;
  const std::uint64_t hash = (act.address ^ std::rotl(what, 32)) * 0x9E3779B97F4A7C15u;
  return (hash ^ hash >> 32) * 0x9E3779B97F4A7C15u;
}

// A note: the part of the hash that does not choose its place, and the lower half of the position.
std::uint32_t note_of(std::uint64_t hash, std::uint64_t position) {
  return static_cast<std::uint32_t>(hash >> 32 << 16) | static_cast<std::uint16_t>(position);
}

std::size_t place_of(std::uint64_t hash, const std::vector<std::uint32_t>& notes) {
  return hash >> 48 & (notes.size() - 1);
}

void note(std::vector<std::uint32_t>& notes, const Routine::Act& act, std::uint64_t position) {
  const std::uint64_t hash = hash_of(act);
  notes[place_of(hash, notes)] = note_of(hash, position);
}

}  // namespace

bool Routine::grow() noexcept {
  const std::uint64_t size = size_ == 0 ? least_acts : 2 * size_;
  constexpr std::size_t bytes_of_a_note = sizeof(std::uint32_t) + acts_per_note * sizeof(Act);  // and of its acts
  capacity_ = std::clamp(std::bit_floor(most_bytes_ / bytes_of_a_note * acts_per_note), least_acts, most_acts);
  if (size > capacity_) return false;
  try {
    if (acts_ == nullptr) acts_.reset(static_cast<Act*>(std::malloc(most_acts * sizeof(Act))));
    if (acts_ == nullptr) return false;
    std::vector<std::uint32_t> notes(size / acts_per_note);
    for (std::uint64_t position = here_ - std::min(here_ - 1, size_); position < here_; ++position) {
      // In the lower half everything stays where it is.
      if ((position & size_) != 0) acts_.get()[position & (size - 1)] = at(position);
      if (position % acts_per_note == 0) note(notes, at(position), position);
    }
    notes_.swap(notes);
  } catch (const std::bad_alloc&) {
    return false;
  }
  size_ = size;
  patience_ += static_cast<std::int64_t>(2 * size);  // what is longer takes longer to find
  return true;
}

void Routine::append(const Act& act) noexcept {
  if (here_ > size_ && !grow() && size_ == 0) return;
  at(here_) = act;
  if (here_ % acts_per_note == 0) note(notes_, act, here_);
  ++here_;
}

void Routine::match(const Act& act) noexcept {
  if (match_ != 0 && is_kept(match_) && at(match_) == act) {
    ++match_;
    ++run_;
    return;
  }
  match_ = run_ = 0;
  if (size_ == 0) return;
  const std::uint64_t hash = hash_of(act);
  const std::uint32_t known = notes_[place_of(hash, notes_)];
  if (known != note_of(hash, known)) return;
  const std::uint64_t position = here_ - static_cast<std::uint16_t>(here_ - known);
  if (!is_kept(position) || at(position) != act) return;
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
  const std::uint64_t followed = cursor();
  for (std::uint64_t i = 0; i < followed; ++i) append(Act(at(first_ + i)));
  match_ = here_ - length_;
  length_ = answered_in_all_ = left_ = catch_up_after_ = 0;
}

bool Routine::observe(const Act& act, Stream stream, std::uint64_t before, std::uint64_t after) noexcept {
  const bool undisturbed = before == changes_ && stream == stream_;
  changes_ = after;
  if (length_ != 0) {
    if (undisturbed && *next_ == act) {
      step();
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
  if (match_ == 0 || run_ < std::max(distance, least_run_) || here_ - std::max(since_, settled_) < 2 * distance ||
      2 * distance > size_) {
    return false;
  }
  length_ = distance;
  first_ = here_ - distance;
  next_ = &at(first_);
  end_ = &at(first_ + length_);
  ring_end_ = acts_.get() + size_;
  patience_ += static_cast<std::int64_t>(length_);  // leave() takes it back
  left_ = catch_up_after_ = std::max(std::uint64_t{1} << 16, 64 * length_);
  return true;
}

bool Routine::wakes(std::uint64_t now) noexcept {
  if (patience_ == 0 && rests_until_ == 0) rests_until_ = now;  // the beginning
  if (patience_ < 0 || size_ != 0) {
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
  acts_.reset();
  std::vector<std::uint32_t>().swap(notes_);
  size_ = first_ = length_ = left_ = catch_up_after_ = answered_in_all_ = match_ = run_ = 0;
  here_ = since_ = settled_ = 1;
  least_run_ = least_run;
  patience_ = 0;
  disturb();
}

}  // namespace poolgrad
