#include "checkpoints/safetensors/header.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "framework/base/error.h"
#include "framework/io/foreign_json.h"

namespace keel::checkpoints::safetensors {
namespace {

using io::excerpt;
using Json = io::ForeignJson;

constexpr uint64_t kLargestHeader_bytes = 100'000'000;  // the format's own limit

int64_t count_in(const Json& value, const std::string& what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t(INT64_MAX))
    throw input_error("{} must be a whole number of at least 0, not {}", what, excerpt(value));
  return int64_t(value.get<uint64_t>());
}

const Json& key_of(const Json& object, const char* key, const std::string& what) {
  const auto found = object.find(key);
  if (found == object.end()) throw input_error("{} has no '{}'", what, key);
  return *found;
}

int64_t size_bytes_of(const TensorEntry& entry, const std::string& what) {
  int64_t bytes = bytes_of_any(entry.type);
  if (bytes == 0) throw input_error("{}: the element type {} is unknown", what, excerpt(entry.type));
  for (int64_t size : entry.shape)
    if (__builtin_mul_overflow(bytes, size, &bytes))
      throw input_error("{}: the sizes {} overflow", what, excerpt(entry.shape));
  return bytes;
}

// `data_begin`, `file_bytes`: where data lies in the file.
TensorEntry read_entry(const Json& json, const std::string& what, int64_t data_begin, int64_t file_bytes) {
  if (!json.is_object()) throw input_error("{} must be an object, not {}", what, excerpt(json));
  const Json &type = key_of(json, "dtype", what), &shape = key_of(json, "shape", what),
             &offsets = key_of(json, "data_offsets", what);
  if (!type.is_string()) throw input_error("{}: dtype must be a text, not {}", what, excerpt(type));
  if (!shape.is_array()) throw input_error("{}: shape must be a list, not {}", what, excerpt(shape));
  if (!offsets.is_array() || offsets.size() != 2)
    throw input_error("{}: data_offsets must be [begin, end], not {}", what, excerpt(offsets));
  TensorEntry entry{.type = type.get<std::string>(), .shape = {}};
  for (const Json& size : shape) entry.shape.push_back(count_in(size, what + ": a size"));
  const int64_t begin = count_in(offsets[0], what + ": data_offsets"), data_bytes = file_bytes - data_begin;
  const int64_t end = count_in(offsets[1], what + ": data_offsets");
  if (begin > end) throw input_error("{}: data_offsets {} end before they begin", what, excerpt(offsets));
  if (end > data_bytes)
    throw input_error("{}: lies up to byte {} of the data, and the file has {} of it: it was cut short", what, end,
                      data_bytes);
  const int64_t bytes = size_bytes_of(entry, what);
  if (end - begin != bytes)
    throw input_error("{}: {} {} takes {} bytes, but data_offsets give it {}", what, entry.type, excerpt(entry.shape),
                      bytes, end - begin);
  entry.begin = data_begin + begin;
  entry.end = data_begin + end;
  return entry;
}

void check_cover(const Header& header, const std::string& path, int64_t data_begin, int64_t file_bytes) {
  std::vector<std::pair<const TensorEntry*, const std::string*>> in_order;
  for (const auto& [name, entry] : header.tensors) in_order.emplace_back(&entry, &name);
  std::sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  int64_t covered = data_begin;
  const std::string* before = nullptr;
  for (const auto& [entry, name] : in_order) {
    if (entry->begin < covered) throw input_error("{}: the data of {} and {} overlap", path, *before, *name);
    if (entry->begin > covered)
      throw input_error("{}: {} bytes before {} belong to no tensor", path, entry->begin - covered, *name);
    covered = entry->end;
    before = name;
  }
  if (covered != file_bytes)
    throw input_error("{}: {} bytes after the last tensor belong to none", path, file_bytes - covered);
}

}  // namespace

int64_t TensorEntry::elements() const {
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

std::string TensorEntry::shape_text() const {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Header read_header(std::string_view file, const std::string& path) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes)
    throw input_error("{}: {} bytes are too few for a safetensors file", path, file.size());
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  const uint64_t rest = file.size() - sizeof header_bytes;
  if (header_bytes > kLargestHeader_bytes)
    throw input_error("{}: a header of {} bytes is above the format's limit of {}", path, header_bytes,
                      kLargestHeader_bytes);
  if (header_bytes > rest)
    throw input_error("{}: its header of {} bytes is cut short: the file has {} bytes", path, header_bytes,
                      file.size());
  const std::string_view text = file.substr(sizeof header_bytes, header_bytes);
  const Json json = io::parse_foreign_json(text, path + ": the header");
  const int64_t data_begin = int64_t(sizeof header_bytes + header_bytes);
  Header header;
  for (const auto& [name, value] : json.items()) {
    if (name != "__metadata__") {
      header.tensors[name] = read_entry(value, path + ": " + name, data_begin, int64_t(file.size()));
      continue;
    }
    if (!value.is_object()) throw input_error("{}: __metadata__ must be an object", path);
    for (const auto& [key, note] : value.items()) {
      if (!note.is_string()) throw input_error("{}: __metadata__.{} must be a text", path, key);
      header.metadata[key] = note.get<std::string>();
    }
  }
  check_cover(header, path, data_begin, int64_t(file.size()));
  return header;
}

std::string make_header(const std::vector<std::pair<std::string, TensorEntry>>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json;  // as given
  json["__metadata__"] = metadata;
  int64_t begin = 0;
  for (const auto& [name, entry] : tensors) {
    const int64_t end = begin + entry.elements() * bytes_of_any(entry.type);
    json[name] = {{"dtype", entry.type}, {"shape", entry.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  const uint64_t bytes = text.size();
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + text;
}

}  // namespace keel::checkpoints::safetensors
