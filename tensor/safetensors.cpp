#include "tensor/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>

#include "allocator/base/atomic_file.h"
#include "allocator/base/json_events.h"
#include "allocator/base/printable.h"
#include "allocator/base/salted_map.h"
#include "allocator/error.h"
#include "tensor/host_bytes.h"
#include "tensor/input_file.h"

namespace poolgrad {

namespace {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape = {};
  std::string_view foreign = {};     // name of an unsupported dtype; empty: `dtype` is valid
  unsigned bits = 0;                 // per element
  std::uint64_t begin = 0, end = 0;  // bytes, relative to the end of the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

constexpr std::pair<DType, std::string_view> safetensors_types[] = {
    {DType::f64, "F64"}, {DType::f32, "F32"}, {DType::f16, "F16"}, {DType::bf16, "BF16"},
    {DType::i64, "I64"}, {DType::i32, "I32"}, {DType::u8, "U8"},   {DType::boolean, "BOOL"}};

/// Dtypes of the format that poolgrad lacks: bits per element, and name.
constexpr std::pair<unsigned, std::string_view> foreign_types[] = {
    {4, "F4"},          {6, "F6_E2M3"},     {6, "F6_E3M2"}, {8, "I8"},   {8, "F8_E4M3"}, {8, "F8_E5M2"}, {8, "F8_E8M0"},
    {8, "F8_E4M3FNUZ"}, {8, "F8_E5M2FNUZ"}, {16, "I16"},    {16, "U16"}, {32, "U32"},    {64, "U64"},    {64, "C64"}};

std::string names_of(const auto& types) {
  std::string names;
  for (const auto& [type, name] : types) names += (names.empty() ? "" : " ") + std::string(name);
  return names;
}

/// Handles the events of the JSON reader and rejects anything out of place. The finite states bound the nesting depth,
/// so deep nesting fails at the first bracket too many.
class HeaderReader : public JsonEvents {
 public:
  SafetensorsHeader header;

  void start_object() override {
    if (state_ == State::outside) return go(State::top);
    if (state_ == State::entry_value) return go(State::entry);
    if (state_ == State::metadata_value) return go(State::metadata);
    refuse("unexpected object");
  }
  void end_object() override {
    if (state_ == State::top) return go(State::outside);
    if (state_ == State::entry && keys_.size() != 3) refuse("needs dtype, shape and data_offsets");
    go(State::top);
  }
  void start_array() override {
    if (state_ == State::shape_value) return go(State::shape);
    if (state_ == State::offsets_value) return go(State::offsets);
    refuse("unexpected array");
  }
  void end_array() override {
    if (state_ == State::offsets && offsets_ != 2) refuse("data_offsets needs two numbers");
    go(State::entry);
  }
  void key(const std::string& name) override {
    if (state_ == State::top) {
      if (!names_.insert(name).second) refuse("duplicate name " + in_quotes(name));
      keys_.clear();
      if (name == "__metadata__") return go(State::metadata_value);
      header.entries.emplace_back().name = name;
      return go(State::entry_value);
    }
    if (state_ == State::metadata) {
      key_ = name;
      if (!header.metadata.emplace(name, "").second) refuse("duplicate key " + in_quotes(name) + " in __metadata__");
      return go(State::metadata_text);
    }
    if (!keys_.insert(name).second) refuse("duplicate key " + in_quotes(name));
    offsets_ = 0;
    if (name == "dtype") return go(State::dtype_value);
    if (name == "shape") return go(State::shape_value);
    if (name == "data_offsets") return go(State::offsets_value);
    refuse("unknown key " + in_quotes(name));
  }
  void string(const std::string& text) override {
    if (state_ == State::metadata_text) {
      header.metadata[key_] = text;
      return go(State::metadata);
    }
    if (state_ != State::dtype_value) refuse("unexpected string");
    SafetensorsEntry& entry = header.entries.back();
    for (const auto& [dtype, name] : safetensors_types)
      if (name == text) entry.dtype = dtype, entry.bits = 8 * static_cast<unsigned>(size_of(dtype));
    for (const auto& [bits, name] : foreign_types)
      if (name == text) entry.foreign = name, entry.bits = bits;
    if (entry.bits == 0)
      refuse("unknown dtype " + in_quotes(text) + "; known are " + names_of(safetensors_types) + " " +
             names_of(foreign_types));
    go(State::entry);
  }
  void number_unsigned(std::uint64_t value) override {
    if (value > INT64_MAX) refuse("a number beyond 2^63 - 1");
    if (state_ == State::shape) {
      Shape& shape = header.entries.back().shape;
      if (shape.rank() == max_rank) refuse("more than " + std::to_string(max_rank) + " dimensions");
      return shape.append(static_cast<std::int64_t>(value));
    }
    if (state_ != State::offsets || offsets_ == 2) refuse("unexpected number");
    (offsets_++ ? header.entries.back().end : header.entries.back().begin) = value;
  }
  void number_negative(std::int64_t) override { refuse("negative number"); }
  void number_float(double) override { refuse("a number that is not a whole number below 2^63"); }
  void null() override {
    if (state_ != State::metadata_value) refuse("unexpected null");
    go(State::top);  // no metadata
  }
  void boolean(bool) override { refuse("unexpected boolean"); }

 private:
  enum class State {
    outside,
    top,
    entry_value,
    entry,
    dtype_value,
    shape_value,
    shape,
    offsets_value,
    offsets,
    metadata_value,
    metadata,
    metadata_text
  };

  void go(State state) { state_ = state; }
  [[noreturn]] void refuse(const std::string& reason) const {
    const bool inside = state_ > State::top && state_ < State::metadata_value;
    throw ValueError(inside ? "tensor " + in_quotes(header.entries.back().name) + ": " + reason : reason);
  }

  State state_ = State::outside;
  SaltedTexts names_, keys_;
  std::string key_;
  int offsets_ = 0;
};

/// Parses a header; does not check sizes and offsets. Throws ValueError with the reason, also for duplicates and
/// unknown keys.
SafetensorsHeader parse_safetensors_header(std::string_view text) {
  HeaderReader reader;
  if (const auto fault = parse_json(text, reader))
    throw ValueError("invalid JSON at character " + std::to_string(*fault) + " of the header");
  return std::move(reader.header);
}

/// Returns the header's JSON; names must be distinct. Throws ValueError for a name or text that is not UTF-8.
std::string safetensors_header(const SafetensorsHeader& header) {
  using Json = nlohmann::ordered_json;
  Json json = Json::object();
  Json::object_t::Container& members = json.get_ref<Json::object_t&>();  // operator[] would search all members
  if (!header.metadata.empty()) members.emplace_back("__metadata__", header.metadata);
  for (const SafetensorsEntry& entry : header.entries) {
    Json& value = members.emplace_back(entry.name, Json::object()).second;
    for (const auto& [dtype, name] : safetensors_types)
      if (dtype == entry.dtype) value["dtype"] = name;
    value["shape"] = std::vector<std::int64_t>(entry.shape.begin(), entry.shape.end());
    value["data_offsets"] = {entry.begin, entry.end};
  }
  try {
    return json.dump();
  } catch (const Json::exception&) {
    throw ValueError("a name or a metadata text is not UTF-8");
  }
}

constexpr std::uint64_t longest_header = 100'000'000;

/// Returns the Levenshtein distance.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

const Tensor* find(const SafetensorsFile& file, const std::string& name) {
  for (const auto& [key, tensor] : file.tensors)
    if (key == name) return &tensor;
  return nullptr;
}

/// Returns whether the elements of the tensor take exactly `bytes`.
bool fits(const SafetensorsEntry& entry, std::uint64_t bytes) {
  std::uint64_t elements = 0;
  return tensor_bytes(entry.shape, DType::u8, elements) && elements <= UINT64_MAX / entry.bits &&
         elements * entry.bits % 8 == 0 && elements * entry.bits / 8 == bytes;
}

/// Checks that the data covers the file from the header to its end, without holes and overlaps.
void check_layout(const InputFile& file, std::uint64_t data, const std::vector<SafetensorsEntry>& entries) {
  std::uint64_t next = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::string who = "tensor " + in_quotes(entry.name);
    if (entry.end < entry.begin || entry.end > file.size() - data)
      file.fail(who + ": data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) +
                ") outside the " + std::to_string(file.size() - data) + " bytes of data");
    if (!fits(entry, entry.end - entry.begin))
      file.fail(who + ": shape " + to_string(entry.shape) + " " +
                std::string(entry.foreign.empty() ? to_string(entry.dtype) : entry.foreign) +
                " does not fit data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + ")");
    if (entry.begin != next)
      file.fail_at(data + std::min(next, entry.begin),
                   who + (entry.begin > next ? ": a hole before its data" : ": its data overlap another tensor's"));
    next = entry.end;
  }
  if (next != file.size() - data) file.fail_at(data + next, "bytes that belong to no tensor");
}

}  // namespace

bool SafetensorsFile::contains(const std::string& name) const { return find(*this, name) != nullptr; }

void SafetensorsFile::check_complete(std::string_view start) const {
  const auto odd = unsupported.lower_bound(std::string(start));
  if (odd != unsupported.end() && odd->first.starts_with(start)) at(odd->first);
}

const Tensor& SafetensorsFile::at(const std::string& name) const {
  if (const Tensor* tensor = find(*this, name)) return *tensor;
  if (const auto odd = unsupported.find(name); odd != unsupported.end())
    throw FileError("[safetensors] tensor " + in_quotes(name) + " was left out: its dtype " + printable(odd->second) +
                    " is not supported (" + names_of(safetensors_types) + " are)");
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const auto& [key, tensor] : tensors) near.emplace_back(distance(key, name), key);
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  near.resize(std::min<std::size_t>(near.size(), 3));
  std::string text = "[safetensors] no tensor is called " + in_quotes(name);
  for (std::size_t i = 0; i < near.size(); ++i) text += (i ? ", " : "; near: ") + in_quotes(near[i].second);
  throw FileError(text);
}

struct SafetensorsReader::Impl {
  explicit Impl(const std::string& path) : file("load_safetensors", path) {
    std::uint64_t length = 0;
    if (file.size() > sizeof length) file.read(0, &length, sizeof length);
    const auto refuse = [&] {
      file.fail("not a safetensors file: its " + std::to_string(file.size()) +
                " bytes do not begin with the length of a header and '{'");
    };
    if (length == 0 || length > longest_header) refuse();
    const std::string text = file.read_text(sizeof length, length);
    if (const std::size_t first = text.find_first_not_of(" \t\r\n"); first == std::string::npos || text[first] != '{')
      refuse();
    data = sizeof length + length;
    SafetensorsHeader header;
    try {
      header = parse_safetensors_header(text);
    } catch (const ValueError& error) {
      file.fail(error.what());
    }
    std::stable_sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    check_layout(file, data, header.entries);
    outline.metadata = std::move(header.metadata);
    for (SafetensorsEntry& entry : header.entries) {
      if (entry.foreign.empty()) {
        if (entry.dtype == DType::boolean) file.check_bools(data + entry.begin, entry.end - entry.begin);
        const Tensor element = Tensor::empty({1}, {entry.dtype, cpu});
        places.emplace(entry.name, Place{outline.tensors.size(), data + entry.begin});
        outline.tensors.emplace_back(std::move(entry.name),
                                     element.alias({entry.shape, Strides::filled(entry.shape.rank(), 0), 0}));
      } else {
        outline.unsupported.emplace(std::move(entry.name), entry.foreign);
      }
    }
  }

  const InputFile file;
  std::uint64_t data = 0;
  SafetensorsFile outline;
  struct Place {
    std::size_t index;    // in the outline
    std::uint64_t begin;  // in the file
  };
  SaltedTextMap<Place> places;
};

SafetensorsReader::SafetensorsReader(const std::string& path, CallSite) : impl_(std::make_unique<const Impl>(path)) {}

SafetensorsReader::~SafetensorsReader() = default;

const SafetensorsFile& SafetensorsReader::outline() const { return impl_->outline; }

void SafetensorsReader::read(const std::string& name, Tensor into, CallSite) const {
  const auto place = impl_->places.find(name);
  if (place == impl_->places.end()) outline().at(name);  // throws
  const Tensor& there = outline().tensors[place->second.index].second;
  if (there.shape() != into.shape() || there.dtype() != into.dtype())
    throw ValueError("[read] tensor " + in_quotes(name) + " does not fit: in the file " + describe(there) +
                     ", wanted " + describe(into));
  if (repeats_elements(into.geometry()))
    throw ValueError("[read] tensor " + in_quotes(name) +
                     " cannot be read into elements that share memory: " + describe(into));
  impl_->file.read_into(into, place->second.begin);
  into.bump_version();
}

SafetensorsFile load_safetensors(const std::string& path, Device device, CallSite) {
  const SafetensorsReader reader(path);
  SafetensorsFile out = reader.outline();
  for (auto& [name, tensor] : out.tensors) {
    tensor = Tensor::empty(tensor.shape(), {tensor.dtype(), device});
    reader.read(name, tensor);
  }
  return out;
}

void save_safetensors(const std::string& path, const SafetensorsFile& file, CallSite) {
  file.check_complete();
  // Wide types first: with a header of a multiple of 8 bytes, every tensor is then aligned to its element size.
  std::vector<const std::pair<std::string, Tensor>*> order;
  std::unordered_set<std::string> names{"__metadata__"};
  for (const auto& named : file.tensors) {
    if (!named.second.defined())
      throw ValueError("[save_safetensors] tensor " + in_quotes(named.first) + " is undefined");
    if (!names.insert(named.first).second)
      throw ValueError("[save_safetensors] duplicate or reserved name " + in_quotes(named.first));
    order.push_back(&named);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return size_of(a->second.dtype()) > size_of(b->second.dtype());
  });

  SafetensorsHeader header;
  header.metadata = file.metadata;
  std::uint64_t next = 0;
  for (const auto* named : order) {
    const std::uint64_t end = next + bytes_of(named->second);
    header.entries.push_back({.name = named->first,
                              .dtype = named->second.dtype(),
                              .shape = named->second.shape(),
                              .begin = next,
                              .end = end});
    next = end;
  }
  std::string text;
  try {
    text = safetensors_header(header);
  } catch (const ValueError& error) {
    throw ValueError("[save_safetensors] " + printable_path(path) + ": " + error.what());
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  if (length > longest_header)
    throw ValueError("[save_safetensors] " + printable_path(path) + ": the header is above 100 MB");

  AtomicFile out(path);
  out.write(&length, sizeof length);
  out.write(text);
  for (const auto* named : order)
    read_bytes(named->second, [&](const void* piece, std::size_t bytes) { out.write(piece, bytes); });
  out.commit();
}

}  // namespace poolgrad
