// Runs a function in a child process, so that a crash or a hang of a pool is an ordinary test failure.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>

namespace poolgrad::testing {

/// Returns the result of `work`, or how the child ended and its output on stderr. Kills a child after `seconds`.
inline std::string in_child(const std::function<std::string()>& work, unsigned seconds = 120) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw std::runtime_error("[in_child] no pipe");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("[in_child] cannot fork");
  if (child == 0) {
    close(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    alarm(seconds);
    const std::string text = [&]() -> std::string {
      try {
        return work();
      } catch (const std::exception& error) {  // the child must not continue with its parent's tests
        return "threw: " + std::string(error.what());
      }
    }();
    std::size_t written = 0;
    while (written < text.size()) {
      const ssize_t n = write(ends[1], text.data() + written, text.size() - written);
      if (n <= 0) break;
      written += static_cast<std::size_t>(n);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t n; (n = read(ends[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "ended by " + std::string(strsignal(WTERMSIG(status))) + ": " + text;
  if (WEXITSTATUS(status) != 0) return "exited with " + std::to_string(WEXITSTATUS(status)) + ": " + text;
  return text;
}

}  // namespace poolgrad::testing
