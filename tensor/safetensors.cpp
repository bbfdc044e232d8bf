#include "tensor/safetensors.h"

#include <algorithm>
#include <unordered_set>

#include "allocator/base/atomic_file.h"
#include "allocator/error.h"
#include "tensor/internal/input_file.h"
#include "tensor/internal/safetensors_header.h"

namespace poolgrad {

namespace {

constexpr std::uint64_t longest_header = 100'000'000;

std::uint64_t bytes_of(const Tensor& tensor) {
  return static_cast<std::uint64_t>(tensor.count()) * size_of(tensor.dtype());
}

/// Levenshtein's distance.
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

/// Data must cover the file from the header to its end, without holes and overlaps.
void check_layout(const InputFile& file, std::uint64_t data, const std::vector<SafetensorsEntry>& entries) {
  std::uint64_t next = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::string who = "tensor '" + entry.name + "'";
    std::uint64_t bytes = 0;
    if (entry.end < entry.begin || entry.end > file.size() - data)
      file.fail(who + ": data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) +
                ") outside the " + std::to_string(file.size() - data) + " bytes of data");
    const bool known = entry.unsupported.empty();
    if (known && (!tensor_bytes(entry.shape, entry.dtype, bytes) || bytes != entry.end - entry.begin))
      file.fail(who + ": shape " + to_string(entry.shape) + " " + std::string(to_string(entry.dtype)) +
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

void SafetensorsFile::check_complete() const {
  if (!unsupported.empty()) at(unsupported.begin()->first);
}

const Tensor& SafetensorsFile::at(const std::string& name) const {
  if (const Tensor* tensor = find(*this, name)) return *tensor;
  if (const auto odd = unsupported.find(name); odd != unsupported.end())
    throw FileError("[safetensors] tensor '" + name + "' was left out: its dtype " + odd->second.substr(0, 40) +
                    " is not supported (F64 F32 F16 BF16 I64 I32 U8 BOOL are)");
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const auto& [key, tensor] : tensors) near.emplace_back(distance(key, name), key);
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  near.resize(std::min<std::size_t>(near.size(), 3));
  std::string text = "[safetensors] no tensor is called '" + name + "'";
  for (std::size_t i = 0; i < near.size(); ++i) text += (i ? ", '" : "; near: '") + near[i].second + "'";
  throw FileError(text);
}

SafetensorsFile load_safetensors(const std::string& path, Device device) {
  const InputFile file("load_safetensors", path);
  std::uint64_t length = 0;
  file.read(0, &length, sizeof length);
  if (length > longest_header || length > file.size() - sizeof length)
    file.fail_at(0, "a header of " + std::to_string(length) + " bytes");
  const std::uint64_t data = sizeof length + length;
  SafetensorsHeader header;
  try {
    header = parse_safetensors_header(file.read_text(sizeof length, length));
  } catch (const ValueError& error) {
    file.fail(error.what());
  }
  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  check_layout(file, data, header.entries);

  SafetensorsFile out;
  out.metadata = std::move(header.metadata);
  out.tensors.reserve(header.entries.size());
  for (SafetensorsEntry& entry : header.entries) {
    if (entry.unsupported.empty())
      out.tensors.emplace_back(std::move(entry.name),
                               file.read_tensor(data + entry.begin, entry.shape, entry.dtype, device));
    else
      out.unsupported.emplace(std::move(entry.name), std::move(entry.unsupported));
  }
  return out;
}

void save_safetensors(const std::string& path, const SafetensorsFile& file) {
  file.check_complete();
  // Wide types first: with a header of a multiple of 8 bytes every tensor is then aligned to its element size.
  std::vector<const std::pair<std::string, Tensor>*> order;
  std::unordered_set<std::string> names{"__metadata__"};
  for (const auto& named : file.tensors) {
    if (!named.second.defined()) throw ValueError("[save_safetensors] tensor '" + named.first + "' is undefined");
    if (!names.insert(named.first).second)
      throw ValueError("[save_safetensors] duplicate or reserved name '" + named.first + "'");
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
    header.entries.push_back({named->first, named->second.dtype(), "", named->second.shape(), next, end});
    next = end;
  }
  std::string text;
  try {
    text = safetensors_header(header);
  } catch (const ValueError& error) {
    throw ValueError("[save_safetensors] " + path + ": " + error.what());
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  if (length > longest_header) throw ValueError("[save_safetensors] " + path + ": the header is above 100 MB");

  AtomicFile out(path);
  out.write(&length, sizeof length);
  out.write(text);
  for (const auto* named : order) {
    const Tensor host = named->second.on_host();
    out.write(host.view().data, bytes_of(host));
  }
  out.commit();
}

}  // namespace poolgrad
