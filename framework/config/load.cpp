// Config files and command-line overrides.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "framework/base/text.h"
#include "framework/config/node_data.h"
#include "framework/config/source_text.h"

namespace keel::config {
namespace {

namespace fs = std::filesystem;

// "" where no file beside `path` has a similar name.
std::string nearest_file(const fs::path& path) {
  std::error_code ignored;
  std::vector<std::string> names;
  fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end; entry.increment(ignored))
    if (!entry->is_directory(ignored)) names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  std::string name = nearest(path.filename().string(), names);
  return name.empty() ? "" : (path.parent_path() / name).string();
}

struct Override {
  std::string path;
  Node value;
};

Override parse_override(const std::string& text) {
  std::string name = "command line: " + text;
  size_t equals = text.find('=');
  std::string path = text.substr(0, equals);
  Node nowhere = parse_text("", name, false);
  if (equals == std::string::npos || path.empty()) throw nowhere.error("write section.key=value");
  Node value = parse_text(text.substr(equals + 1), name, false);
  return {path, value.exists() ? value : parse_text("null", name, false)};
}

}  // namespace

std::string read_text(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) throw input_error("{}: a directory, not a config file", path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::string reason = errno != 0 ? std::strerror(errno) : "cannot be opened";
    std::string near = errno == ENOENT ? nearest_file(path) : "";
    throw input_error("{}: {}{}", path, reason, near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
  }
  std::string text(kMostText_bytes + 1, '\0');
  file.read(text.data(), std::streamsize(text.size()));
  if (file.bad()) throw input_error("{}: cannot be read: {}", path, std::strerror(errno));
  text.resize(size_t(file.gcount()));
  return text;
}

Node with_overrides(Node root, std::span<const std::string> overrides) {
  std::vector<Override> seen;
  for (const std::string& text : overrides) {
    Override next = parse_override(text);
    for (const Override& other : seen)
      if (overlap(other.path, next.path)) throw next.value.error("{} is set twice, also by {}", next.path, other.path);
    root = root.with(next.path, next.value);
    seen.push_back(std::move(next));
  }
  return root;
}

Node load(const std::string& path, std::span<const std::string> overrides) {
  Node root = parse(read_text(path), path);
  if (root.empty()) throw root.error("the file is empty: a config is a map of sections such as data: and model:");
  if (root.kind() == Node::Kind::list) throw root.error("needs a map of sections such as data: and model:, is a list");
  if (root.kind() == Node::Kind::text)
    throw root.error("needs a map of sections such as data: and model:, is {}{}", in_quotes(root.text()),
                     root.text().find(':') == std::string::npos ? "" : " (a space is missing after the colon)");
  return with_overrides(std::move(root), overrides);
}

}  // namespace keel::config
