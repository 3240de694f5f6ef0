// Errors: one exception type that says what kind of failure it is, where, and what the user can do next.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace keel {

// What the program's exit code will be (README, "Exit codes").
enum class ErrorKind {
  internal = 1,  // a broken promise of Keel's own, or a library or system call that failed
  input = 2,     // a wrong file, key, value, layout or command line: nothing was lost
  unstable = 3,  // a state that is not finite and must not be saved; the last good checkpoint is kept
};

class Error : public std::runtime_error {
 public:
  // `message` is one sentence for the user, with the values and the next move.
  Error(ErrorKind kind, std::string message, std::source_location where = std::source_location::current());

  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }
  // "file.cpp:12" inside Keel's source; printed for internal errors only.
  std::string where() const;

 private:
  ErrorKind kind_;
  std::source_location where_;
};

// throw input_error("{}: {} tokens are too few", path, n);
template <class... Args>
Error input_error(fmt::format_string<Args...> format, Args&&... args) {
  return Error(ErrorKind::input, fmt::format(format, std::forward<Args>(args)...));
}

// The same error once a run is under way: what served until then is no wrong input, and the same command may go on.
Error in_mid_run(const Error& error);

// A format string that remembers where it was written, so that internal errors name the place that found them.
template <class... Args>
struct LocatedFormat {
  template <class Text>
  consteval LocatedFormat(const Text& text, std::source_location where = std::source_location::current())
      : format(text), where(where) {}
  fmt::format_string<Args...> format;
  std::source_location where;
};

// require(a == b, "matmul: inner sizes differ: {} and {}", a, b): throws an internal error where the condition fails.
template <class... Args>
void require(bool condition, LocatedFormat<std::type_identity_t<Args>...> format, Args&&... args) {
  if (condition) [[likely]]
    return;
  throw Error(ErrorKind::internal, fmt::format(format.format, std::forward<Args>(args)...), format.where);
}

}  // namespace keel
