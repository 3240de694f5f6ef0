#include "framework/data/notes.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "framework/base/error.h"
#include "framework/io/files.h"

namespace keel::data {
namespace {

using Json = nlohmann::ordered_json;

const Json& at(const Json& notes, const std::string& path, const char* key) {
  auto found = notes.find(key);
  if (found == notes.end()) throw input_error("{}: the key '{}' is missing", path, key);
  return *found;
}

int64_t count_at(const Json& notes, const std::string& path, const char* key) {
  const Json& value = at(notes, path, key);
  bool fits =
      value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t(INT64_MAX));
  if (!fits || value.get<int64_t>() < 0)
    throw input_error("{}: '{}' must be a whole number of at least 0, not {}", path, key, value.dump());
  return value.get<int64_t>();
}

std::string text_at(const Json& notes, const std::string& path, const char* key) {
  const Json& value = at(notes, path, key);
  if (!value.is_string()) throw input_error("{}: '{}' must be a text, not {}", path, key, value.dump());
  return value.get<std::string>();
}

}  // namespace

std::optional<TokenNotes> read_notes(const std::string& prefix) {
  const std::string path = prefix + ".json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  std::ifstream file(path);
  Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded() || !json.is_object())
    throw input_error("{}: not a JSON object; run `keel tokenize` again", path);
  TokenNotes notes;
  notes.tokenizer = text_at(json, path, "tokenizer");
  notes.model = text_at(json, path, "model");
  notes.vocabulary = count_at(json, path, "vocabulary");
  notes.end_of_document = count_at(json, path, "end_of_document");
  if (json.contains("start_of_text") && !json["start_of_text"].is_null())  // older files have none
    notes.start_of_text = count_at(json, path, "start_of_text");
  notes.tokens = count_at(json, path, "tokens");
  notes.documents = count_at(json, path, "documents");
  notes.bytes = count_at(json, path, "bytes");
  notes.folder = std::filesystem::path(path).parent_path().string();
  return notes;
}

void write_notes(const std::string& prefix, const TokenNotes& notes) {
  Json json = {{"tokenizer", notes.tokenizer},
               {"model", notes.model},
               {"vocabulary", notes.vocabulary},
               {"end_of_document", notes.end_of_document},
               {"start_of_text", notes.start_of_text ? Json(*notes.start_of_text) : Json()},
               {"tokens", notes.tokens},
               {"documents", notes.documents},
               {"bytes", notes.bytes}};
  io::write_file(prefix + ".json", json.dump(2) + "\n");
}

}  // namespace keel::data
