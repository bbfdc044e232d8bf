#include "tensor/npy.h"

#include <algorithm>

#include "allocator/base/atomic_file.h"
#include "allocator/error.h"
#include "tensor/internal/input_file.h"
#include "tensor/internal/npy_header.h"

namespace poolgrad {

Tensor load_npy(const std::string& path) {
  const InputFile file("load_npy", path);
  const std::string magic = file.read_text(0, 8);
  if (!magic.starts_with("\x93NUMPY")) file.fail_at(0, "not an npy file");
  const int major = static_cast<unsigned char>(magic[6]), minor = static_cast<unsigned char>(magic[7]);
  if (major < 1 || major > 3 || minor != 0)
    file.fail_at(6, "unknown version " + std::to_string(major) + "." + std::to_string(minor));

  const std::size_t width = major == 1 ? 2 : 4;  // of the header's length
  std::uint32_t length = 0;
  file.read(8, &length, width);
  constexpr std::uint32_t longest = 1 << 16;  // three keys need no more
  if (length > longest) file.fail_at(8, "a header of " + std::to_string(length) + " bytes");
  const std::string text = file.read_text(8 + width, length);
  NpyHeader header;
  try {
    header = parse_npy_header(text);
  } catch (const ValueError& error) {
    file.fail_at(8 + width, error.what());
  }

  const std::uint64_t begin = 8 + width + length;
  std::uint64_t bytes = 0;
  if (!tensor_bytes(header.shape, header.dtype, bytes) || bytes != file.size() - begin)
    file.fail_at(begin, "shape " + to_string(header.shape) + " " + std::string(to_string(header.dtype)) +
                            " does not fit the " + std::to_string(file.size() - begin) + " bytes of data");
  if (!header.fortran_order) return file.read_tensor(begin, header.shape, header.dtype, cpu);

  // Column-major data are the row-major data of the transposed tensor.
  Shape reversed = header.shape;
  Dims order = Dims::filled(reversed.rank(), 0);
  std::reverse(reversed.begin(), reversed.end());
  for (int d = 0; d < order.rank(); ++d) order[d] = order.rank() - 1 - d;
  const Tensor transposed = file.read_tensor(begin, reversed, header.dtype, cpu);
  return transposed.alias(permuted(transposed.geometry(), order)).copy();
}

void save_npy(const std::string& path, const Tensor& tensor) {
  const std::string header = npy_header({tensor.dtype(), false, tensor.shape()});
  const Tensor host = tensor.on_host();
  AtomicFile file(path);
  file.write(header);
  file.write(host.view().data, static_cast<std::size_t>(host.count()) * size_of(host.dtype()));
  file.commit();
}

}  // namespace poolgrad
