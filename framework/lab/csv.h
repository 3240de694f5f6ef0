// Lines of comma-separated values (RFC 4180).
#pragma once

#include <string>
#include <vector>

namespace keel::lab {

// With its newline; fields are quoted where they must be.
inline std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) line += ',';
    if (fields[i].find_first_of(",\"\n") == std::string::npos) {
      line += fields[i];
      continue;
    }
    line += '"';
    for (char letter : fields[i]) line += letter == '"' ? std::string("\"\"") : std::string(1, letter);
    line += '"';
  }
  return line + '\n';
}

}  // namespace keel::lab
