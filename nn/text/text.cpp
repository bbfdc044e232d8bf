#include "nn/text/text.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "nn/text/byte_source.h"

namespace poolgrad::nn {

namespace {

constexpr std::int64_t block_bytes = std::int64_t{1} << 20;

std::vector<std::uint8_t> bytes_of_tokens(const std::vector<std::uint16_t>& tokens) {
  std::vector<std::uint8_t> bytes(2 * tokens.size());
  if (!tokens.empty()) std::memcpy(bytes.data(), tokens.data(), bytes.size());
  return bytes;
}

}  // namespace

Text::Text(std::vector<std::uint8_t> bytes) : Text(bytes_in_memory(std::move(bytes))) {}

Text::Text(const std::vector<std::uint16_t>& tokens) : Text(bytes_in_memory(bytes_of_tokens(tokens)), 2) {}

Text::Text(std::shared_ptr<const ByteSource> source, std::int64_t width) : width_(width) {
  const auto bytes = static_cast<std::int64_t>(source->size());
  if ((width != 1 && width != 2) || bytes % width != 0)
    throw ValueError("[text] " + std::to_string(bytes) + " bytes are no multiple of the token width " +
                     std::to_string(width));
  if (bytes == 0) return;
  pieces_.push_back({std::move(source), 0});
  begins_ = {0, bytes};
}

void Text::check_range(const char* operation, std::int64_t begin, std::int64_t end) const {
  if (begin < 0 || end < begin || end > size())
    throw IndexError(std::string("[") + operation + "] from " + std::to_string(begin) + " to " + std::to_string(end) +
                     " leaves the text of " + std::to_string(size()));
}

template <class F>
void Text::for_each_part(std::int64_t begin, std::int64_t end, const F& f) const {
  auto next = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin());
  for (; begin < end; ++next) {
    const Piece& piece = pieces_[next - 1];
    const std::int64_t stop = std::min(end, begins_[next]);
    f(piece.source, piece.offset + (begin - begins_[next - 1]), stop - begin);
    begin = stop;
  }
}

Text Text::part(std::int64_t begin, std::int64_t end) const {
  check_range("text", begin, end);
  Text result;
  result.width_ = width_;
  for_each_part(begin * width_, end * width_, [&](const auto& source, std::int64_t offset, std::int64_t bytes) {
    if (result.begins_.empty()) result.begins_.push_back(0);
    result.pieces_.push_back({source, offset});
    result.begins_.push_back(result.begins_.back() + bytes);
  });
  return result;
}

void Text::append(const Text& more) {
  if (more.empty()) return;
  if (empty()) {
    *this = more;
    return;
  }
  if (more.width_ != width_) throw ValueError("[text] cannot append tokens of another width");
  const std::int64_t before = begins_.back();
  pieces_.insert(pieces_.end(), more.pieces_.begin(), more.pieces_.end());
  for (std::size_t i = 1; i < more.begins_.size(); ++i) begins_.push_back(before + more.begins_[i]);
}

void Text::read_bytes(std::int64_t begin, std::span<std::uint8_t> into) const {
  const auto count = static_cast<std::int64_t>(into.size());
  check_range("text", begin, begin + count / width_);
  std::size_t done = 0;
  for_each_part(begin * width_, begin * width_ + count,
                [&](const auto& source, std::int64_t offset, std::int64_t bytes) {
                  const auto part = into.subspan(done, static_cast<std::size_t>(bytes));
                  source->read(static_cast<std::size_t>(offset), part);
                  done += part.size();
                });
}

std::vector<std::int32_t> Text::read(std::int64_t begin, std::int64_t count) const {
  check_range("text", begin, begin + count);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count * width_));
  read_bytes(begin, bytes);
  if (width_ == 1) return {bytes.begin(), bytes.end()};
  std::vector<std::uint16_t> tokens(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return {tokens.begin(), tokens.end()};
}

void Text::for_each_block(const BlockVisitor& f, std::int64_t most) const {
  any_block(
      [&](std::span<const std::uint8_t> block) {
        f(block);
        return false;
      },
      most);
}

bool Text::any_block(const std::function<bool(std::span<const std::uint8_t>)>& f, std::int64_t most) const {
  const std::int64_t bytes = size() * width_;
  const std::int64_t blocks = (std::min(bytes, most) + block_bytes - 1) / block_bytes;
  std::vector<std::uint8_t> block;
  for (std::int64_t i = 0; i < blocks; ++i) {
    std::int64_t begin = i * block_bytes;
    if (bytes > most) begin = blocks > 1 ? (bytes - block_bytes) / (blocks - 1) * i / width_ * width_ : 0;
    block.resize(static_cast<std::size_t>(std::min({block_bytes, bytes - begin, most})));
    read_bytes(begin / width_, block);
    for_each_part(begin, begin + static_cast<std::int64_t>(block.size()),
                  [](const auto& source, std::int64_t offset, std::int64_t part) {
                    source->release(static_cast<std::size_t>(offset), static_cast<std::size_t>(part));
                  });
    if (f(block)) return true;
  }
  return false;
}

}  // namespace poolgrad::nn
