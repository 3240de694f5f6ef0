// A folder that goes away with the test.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "framework/base/error.h"

namespace keel::data {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "keel-data-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "no temporary folder: {}", std::strerror(errno));
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  require(bool(file), "cannot write {}", path);
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Names of what lies in a folder.
inline std::set<std::string> files_in(const TemporaryFolder& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "")) names.insert(entry.path().filename());
  return names;
}

// The bytes of a little-endian number, as the formats store it.
template <class T>
std::string bytes_of(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// The message of the input error that f throws; "" where it throws none.
template <class Function>
std::string input_error_of(Function f) {
  try {
    f();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::input ? error.what() : std::string("internal: ") + error.what();
  }
  return "";
}

}  // namespace keel::data
