// A file that appears whole or not at all: bytes go to a temporary beside the target, which is synced and then renamed
// over it. A full disk or a crash leaves the old file as it was.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace poolgrad {

/// The file that `path` really names, through symbolic links, also to what is not there yet: renaming onto a link would
/// replace the link. Throws FileError for links that lead in a circle.
std::string target_of(const std::string& path);

/// Why a file was not opened, from `errno`: "does not exist", or "cannot open: Permission denied".
std::string opening_failure(int error);

/// Removes the temporaries of AtomicFiles at `path` that no process writes any more, as a process leaves that was
/// killed. Each writer holds a lock (flock) on its temporary.
void remove_abandoned_temporaries(const std::string& path);

class AtomicFile {
 public:
  /// Removes abandoned temporaries, and makes the temporary `path`.tmp.<process>.<number>, with the permissions of the
  /// old file where there is one. A symbolic link is followed. Throws FileError, also where `path` exists and is no
  /// regular file.
  explicit AtomicFile(const std::string& path);
  /// Removes the temporary unless commit() has succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends. Throws FileError with the system's reason.
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Syncs, renames over the target and syncs the folder. Throws FileError; the old file is then still there.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_, temporary_;
  int descriptor_ = -1;
};

/// Writes the pieces one after another into an AtomicFile and commits it.
void write_file_atomically(const std::string& path, std::span<const std::string_view> pieces);
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace poolgrad
