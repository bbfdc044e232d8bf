#include "allocator/planner/step_planner.h"

#include <algorithm>

#include "allocator/error.h"

namespace poolgrad {

namespace {

/// Bits for the pieces of a slab between the ends of places: set while live.
class Occupancy {
 public:
  void resize(std::size_t pieces) { words_.assign(pieces / 64 + 1, 0); }
  std::size_t bytes() const { return words_.capacity() * sizeof(std::uint64_t); }

  bool any(std::uint32_t begin, std::uint32_t end) const {
    bool result = false;
    for_each_word(begin, end, [&](std::size_t word, std::uint64_t mask) { result |= (words_[word] & mask) != 0; });
    return result;
  }
  void flip(std::uint32_t begin, std::uint32_t end) {
    for_each_word(begin, end, [&](std::size_t word, std::uint64_t mask) { words_[word] ^= mask; });
  }

 private:
  template <class Visit>
  static void for_each_word(std::uint32_t begin, std::uint32_t end, Visit visit) {
    for (std::size_t word = begin / 64; word <= (end - 1) / 64; ++word) {
      std::uint64_t mask = ~std::uint64_t{0};
      if (word == begin / 64) mask &= ~std::uint64_t{0} << begin % 64;
      if (word == (end - 1) / 64) mask &= ~std::uint64_t{0} >> (63 - (end - 1) % 64);
      visit(word, mask);
    }
  }

  std::vector<std::uint64_t> words_;
};

}  // namespace

/// The planned place of one request of a stream. The block is live or busy while allocated.
struct StepPlanner::Place : Block {
  std::uint64_t offset = 0;
  std::uint32_t first_piece = 0;
  std::uint32_t end_piece = 0;
  bool planned = false;
  bool taken = false;
};

struct StepPlanner::Sequence {
  std::uint64_t stream = 0;
  std::size_t bytes = 0;
  Block* slab = nullptr;
  std::vector<Place> places;  // by request
  std::size_t next = 0;
  Occupancy occupancy;
};

StepPlanner::StepPlanner(std::size_t granule) : granule_(granule) {}

StepPlanner::~StepPlanner() = default;

StepPlanner::Sequence* StepPlanner::sequence_for(std::uint64_t stream) const {
  for (const auto& sequence : sequences_) {
    if (sequence->stream == stream) return sequence.get();
  }
  return nullptr;
}

StepPlanner::Sequence* StepPlanner::sequence_of(std::uintptr_t address) const {
  for (const auto& sequence : sequences_) {
    if (sequence->slab != nullptr && address - sequence->slab->address < sequence->slab->size) return sequence.get();
  }
  return nullptr;
}

bool StepPlanner::is_slab(const Block* block) const {
  const Sequence* sequence = sequence_of(block->address);
  return sequence != nullptr && sequence->slab == block;
}

std::vector<StepPlanner::Slab> StepPlanner::slabs() const {
  std::vector<Slab> result;
  for (const auto& sequence : sequences_) result.push_back({sequence->stream, sequence->bytes, sequence->slab});
  return result;
}

std::size_t StepPlanner::bookkeeping_bytes() const {
  constexpr std::size_t node = sizeof(void*) + sizeof(decltype(open_)::value_type);
  std::size_t bytes = recorded_.capacity() * sizeof(Recorded) + open_.bucket_count() * sizeof(void*) +
                      open_.size() * node + sequences_.capacity() * sizeof(void*);
  for (const auto& sequence : sequences_)
    bytes += sizeof(Sequence) + sequence->places.capacity() * sizeof(Place) + sequence->occupancy.bytes();
  return bytes;
}

// clear() or assigning {} would keep the memory.
void StepPlanner::forget_recording() {
  decltype(recorded_)().swap(recorded_);
  decltype(open_)().swap(open_);
}

bool StepPlanner::begin_step() {
  // Use a plan that misses at most a 50th of a step's requests.
  constexpr std::uint64_t tolerated_share = 50;
  clock_ = 0;
  switch (state_) {
    case State::idle:
      if (rest_ != 0) {
        --rest_;
      } else {
        state_ = State::recording;
      }
      return false;
    case State::recording:
      if (recorded_.empty()) return false;
      if (!open_.empty()) {
        state_ = State::closing;
        return false;
      }
      return make_plan();
    case State::closing: return make_plan();
    case State::planned: return false;
    case State::replaying: break;
  }
  std::uint64_t missed = divergences_ - divergences_before_step_;
  std::uint64_t requests = 0;
  for (const auto& sequence : sequences_) {
    missed += sequence->places.size() - sequence->next;
    requests += sequence->places.size();
    sequence->next = 0;
  }
  divergences_before_step_ = divergences_;
  ++planned_steps_;
  missed_steps_ = missed * tolerated_share > requests ? missed_steps_ + 1 : 0;
  stale_ = missed_steps_ > patience_;
  return false;
}

bool StepPlanner::make_plan() {
  std::unordered_map<std::uint64_t, std::vector<PackItem>> items;
  for (const Recorded& request : recorded_) {
    if (sequence_for(request.stream) == nullptr) {
      sequences_.push_back(std::make_unique<Sequence>());
      sequences_.back()->stream = request.stream;
    }
    Sequence& sequence = *sequence_for(request.stream);
    Place& place = sequence.places.emplace_back();
    place.size = request.size;
    place.stream = request.stream;
    place.planned = request.plannable && request.given_back;
    if (place.planned) items[request.stream].push_back({request.size, request.begin, request.end});
  }
  for (const auto& sequence : sequences_) {
    const Packing packing = pack(items[sequence->stream], granule_);
    sequence->bytes = packing.bytes;
    std::vector<std::uint64_t> ends;
    std::size_t next = 0;
    for (Place& place : sequence->places) {
      if (!place.planned) continue;
      place.offset = packing.offsets[next++];
      ends.insert(ends.end(), {place.offset, place.offset + place.size});
    }
    std::ranges::sort(ends);
    ends.erase(std::ranges::unique(ends).begin(), ends.end());
    const auto piece = [&](std::uint64_t offset) {
      return static_cast<std::uint32_t>(std::ranges::lower_bound(ends, offset) - ends.begin());
    };
    for (Place& place : sequence->places) {
      if (!place.planned) continue;
      place.first_piece = piece(place.offset);
      place.end_piece = piece(place.offset + place.size);
    }
    sequence->occupancy.resize(ends.size());
    sequence->places.shrink_to_fit();
  }
  std::erase_if(sequences_, [](const auto& sequence) { return sequence->bytes == 0; });
  if (sequences_.empty()) {
    drop(true);
    return false;
  }
  forget_recording();
  state_ = State::planned;
  return true;
}

bool StepPlanner::install(const std::vector<Block*>& blocks) {
  if (state_ != State::planned || blocks.size() != sequences_.size()) return false;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Sequence& sequence = *sequences_[i];
    sequence.slab = blocks[i];
    for (Place& place : sequence.places) {
      place.address = blocks[i]->address + place.offset;
      place.window = blocks[i]->window;
    }
  }
  state_ = State::replaying;
  missed_steps_ = planned_steps_ = 0;
  divergences_before_step_ = divergences_;
  ++plans_;
  return true;
}

std::vector<Block*> StepPlanner::live_in(const Block* slab) const {
  std::vector<Block*> result;
  for (Place& place : sequence_of(slab->address)->places) {
    if (place.taken) result.push_back(&place);
  }
  std::ranges::sort(result, {}, &Block::address);
  return result;
}

void StepPlanner::drop(bool useless) {
  constexpr std::uint32_t most_patience = 64;
  sequences_.clear();
  forget_recording();
  state_ = State::idle;
  stale_ = false;
  rest_ = useless ? patience_ - 1 : 0;
  if (useless) patience_ = std::min(patience_ * 2, most_patience);
}

Block* StepPlanner::take(std::size_t size, std::size_t alignment, std::uint64_t stream) {
  if (state_ != State::replaying) return nullptr;
  // Skips omitted and additional requests.
  constexpr std::size_t look_ahead = 32;
  Sequence* sequence = sequence_for(stream);
  if (sequence != nullptr) {
    const std::size_t end = std::min(sequence->next + look_ahead, sequence->places.size());
    for (std::size_t i = sequence->next; i < end; ++i) {
      Place& place = sequence->places[i];
      if (place.size != size) continue;
      divergences_ += i - sequence->next;
      sequence->next = i + 1;
      if (!place.planned) return nullptr;
      if (alignment > granule_ || place.taken || sequence->occupancy.any(place.first_piece, place.end_piece)) break;
      sequence->occupancy.flip(place.first_piece, place.end_piece);
      place.taken = true;
      place.state = BlockState::busy;
      ++hits_;
      return &place;
    }
  }
  ++divergences_;
  return nullptr;
}

bool StepPlanner::count_event() {
  if (state_ != State::recording && state_ != State::closing) return false;
  if (clock_ == most_events) {
    drop(true);
    return false;
  }
  ++clock_;
  return true;
}

void StepPlanner::served(const Block* block, std::size_t size, std::size_t alignment) {
  const std::uint32_t begin = clock_;
  if (!count_event() || state_ == State::closing) return;
  open_[block->address] = recorded_.size();
  recorded_.push_back({.size = size, .stream = block->stream, .begin = begin, .plannable = alignment <= granule_});
}

bool StepPlanner::give_back(Block* block, bool elsewhere) {
  if (state_ == State::replaying) {
    Sequence* sequence = sequence_of(block->address);
    if (sequence == nullptr) return false;
    Place& place = static_cast<Place&>(*block);
    sequence->occupancy.flip(place.first_piece, place.end_piece);
    place.taken = false;
    return true;
  }
  if (!count_event()) return false;
  const auto known = open_.find(block->address);
  if (known == open_.end()) return false;
  Recorded& request = recorded_[known->second];
  request.end = clock_;
  request.given_back = true;
  if (elsewhere) request.plannable = false;
  // In the next step, a block that lives longer than a step would overlap itself.
  if (state_ == State::closing && request.end > request.begin) request.plannable = false;
  open_.erase(known);
  return false;
}

}  // namespace poolgrad
