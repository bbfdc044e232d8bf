// Replaces a file atomically: writes a temporary beside the target, syncs it and renames it over the target. A full
// disk or a crash leaves the old file unchanged.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace poolgrad {

/// Resolves symbolic links in `path`, also to a file that does not exist yet: a rename onto a link would replace the
/// link. Throws FileError for links that lead in a circle.
std::string target_of(const std::string& path);

/// Why a file was not opened, from `errno`: "does not exist", or "cannot open: Permission denied".
std::string opening_failure(int error);

/// Removes the temporaries of AtomicFile at `path` that killed processes left behind. A writer holds a lock (flock) on
/// its temporary.
void remove_abandoned_temporaries(const std::string& path);

class AtomicFile {
 public:
  /// Removes abandoned temporaries and creates the temporary `path`.tmp.<process>.<number>, with the permissions of the
  /// old file if there is one. Follows symbolic links. Throws FileError, also if `path` is not a regular file.
  explicit AtomicFile(const std::string& path);
  /// Removes the temporary unless commit() has succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends. Throws FileError with the system's reason.
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Syncs, renames over the target and syncs the folder. On failure throws FileError and keeps the old file.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_, temporary_;
  int descriptor_ = -1;
};

/// Writes the concatenated pieces into an AtomicFile and commits it.
void write_file_atomically(const std::string& path, std::span<const std::string_view> pieces);
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace poolgrad
