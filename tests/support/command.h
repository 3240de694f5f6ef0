// Runs a program and keeps what it said.
#pragma once

#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace keel::testing {

struct Ended {
  int code = -1;
  std::string output;              // standard output and error, of all ranks, whose lines come in any order
  std::vector<std::string> lines;  // of output
  std::vector<std::string> ours;   // those that begin with "keel: "
  double seconds = 0;
};

inline Ended run_command(const std::string& command) {
  Ended ended;
  const auto begin = std::chrono::steady_clock::now();
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  for (size_t got; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) ended.output.append(buffer.data(), got);
  const int status = pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (size_t at = 0; at < ended.output.size();) {
    const size_t end = std::min(ended.output.find('\n', at), ended.output.size());
    const std::string line = ended.output.substr(at, end - at);
    if (line.starts_with("keel: ")) ended.ours.push_back(line);
    ended.lines.push_back(line);
    at = end + 1;
  }
  return ended;
}

inline std::vector<std::string> errors_of(const Ended& ended) {
  std::vector<std::string> errors = ended.ours;
  std::erase_if(errors, [](const std::string& line) { return line.find("error: ") == std::string::npos; });
  return errors;
}

}  // namespace keel::testing
