#include "checkpoints/parts.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

namespace keel::checkpoints {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames = "parts/names";      // text [parts]
constexpr const char* kHeaders = "parts/headers";  // uint8 [parts, bytes of a header]

}  // namespace

std::string part_name(const std::string& linking_name, int64_t part) {
  return fmt::format("{}.part-{:04}.h5", fs::path(linking_name).stem().string(), part);
}

std::string linked_by(const std::string& name) {
  const size_t at = name.find(".part-");
  return at != name.npos && name.ends_with(".h5") ? name.substr(0, at) + ".h5" : "";
}

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> found;
  std::error_code absent;
  const fs::path linking(path);
  const fs::path directory = linking.has_parent_path() ? linking.parent_path() : ".";
  for (const auto& entry : fs::directory_iterator(directory, absent))
    if (linked_by(entry.path().filename()) == linking.filename()) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::vector<LogicalTensor>> spread(std::vector<LogicalTensor> tensors, int64_t files) {
  std::vector<std::vector<LogicalTensor>> spread(size_t(std::max<int64_t>(1, files)));
  std::stable_sort(tensors.begin(), tensors.end(), [](const LogicalTensor& a, const LogicalTensor& b) {
    return a.shape().elements() > b.shape().elements();
  });
  std::vector<int64_t> elements(spread.size());
  for (const LogicalTensor& tensor : tensors) {
    const size_t least = size_t(std::min_element(elements.begin(), elements.end()) - elements.begin());
    spread[least].push_back(tensor);
    elements[least] += tensor.shape().elements();
  }
  return spread;
}

void write_links(io::File& file, const std::vector<LinkedPart>& parts) {
  std::vector<std::string> names;
  std::vector<uint8_t> headers;
  for (const LinkedPart& part : parts) {
    names.push_back(part.name);
    headers.insert(headers.end(), part.header.begin(), part.header.end());
    for (const LogicalTensor& tensor : part.tensors)
      for (const std::string& path : {tensor.path(), tensor.checksums()}) file.link(path, part.name, "/" + path);
  }
  file.write_texts(kNames, names);
  const std::vector<uint64_t> dims = {parts.size(), headers.size() / parts.size()};
  file.create_dataset<uint8_t>(kHeaders, dims).write<uint8_t>(headers);
}

namespace {

// Whole outside its tensors, and without a way out.
void verify_part(io::IoContext& context, const std::string& path) {
  verify_user_block(path);
  if (!io::File::open(context, path, io::Access::read, {.lock = false}).checked_links().empty())
    throw input_error("{}: a part that links other files", path);
}

// Looking for a member would open what a link leads to, so the list of parts lies in the file itself.
void check_list(const io::File& file, const std::map<std::string, std::string>& links) {
  for (const auto& [name, to] : links)
    if (name == "parts" || name.starts_with("parts/"))
      throw input_error("{}: {}: a link, which no checkpoint has there", file.name(), name);
}

// Names of files beside the one that links them, and what that links is among them.
void check_names(const io::File& file, const std::vector<std::string>& names,
                 const std::map<std::string, std::string>& links) {
  const std::set<std::string> distinct(names.begin(), names.end());
  for (const std::string& name : distinct)
    if (name.empty() || fs::path(name).filename() != name || name.starts_with('.'))
      throw input_error("{}: '{}' is no name of a part beside it", file.name(), name);
  if (distinct.size() != names.size()) throw input_error("{}: a part is named twice", file.name());
  for (const auto& [name, to] : links)
    if (!distinct.contains(to)) throw input_error("{}: a link to {}, which is none of its parts", file.name(), to);
}

}  // namespace

std::vector<std::string> verified_parts(io::IoContext& context, const io::File& file) {
  const std::map<std::string, std::string> links = file.checked_links();
  check_list(file, links);
  const std::vector<std::string> names = file.has(kNames) ? file.read_texts(kNames) : std::vector<std::string>();
  check_names(file, names, links);
  if (!file.has("parts")) return {};
  const std::vector<uint8_t> headers = file.open_dataset(kHeaders).read_all<uint8_t>();
  if (names.empty() || headers.size() % names.size() != 0)
    throw input_error("{}: {} parts and {} bytes of headers", file.name(), names.size(), headers.size());
  const size_t bytes = headers.size() / names.size();
  std::vector<std::string> paths;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string path = fs::path(file.name()).parent_path() / names[i];
    try {
      verify_part(context, path);
    } catch (const Error& error) {
      throw input_error("{} is in {} parts, and one is missing or damaged: {}", file.name(), names.size(),
                        error.what());
    }
    if (header_bytes(path) !=
        std::string(headers.begin() + ptrdiff_t(i * bytes), headers.begin() + ptrdiff_t((i + 1) * bytes)))
      throw input_error("{}: {} is not the part that it was saved with: put back the right one", file.name(), path);
    paths.push_back(path);
  }
  return paths;
}

}  // namespace keel::checkpoints
