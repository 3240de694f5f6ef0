#include "framework/data/notes.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "framework/base/error.h"
#include "framework/io/files.h"

namespace keel::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kLargest_bytes = 1 << 20;

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

std::string TokenNotes::model_path() const {
  return (std::filesystem::path(path).parent_path() / model).string();
}

std::optional<TokenNotes> read_notes(const std::string& prefix) {
  const std::string path = prefix + ".json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const Json json = Json::parse(io::read_file(path, kLargest_bytes), nullptr, false);
  if (json.is_discarded() || !json.is_object())
    throw input_error("{}: not a JSON object; run `keel tokenize` again", path);
  TokenNotes notes;
  notes.tokenizer = text_at(json, path, "tokenizer");
  notes.model = text_at(json, path, "model");
  if (json.contains("model_crc32c")) notes.model_crc32c = count_at(json, path, "model_crc32c");
  notes.vocabulary = count_at(json, path, "vocabulary");
  notes.end_of_document = count_at(json, path, "end_of_document");
  if (json.contains("start_of_text") && !json["start_of_text"].is_null())  // older files have none
    notes.start_of_text = count_at(json, path, "start_of_text");
  notes.tokens = count_at(json, path, "tokens");
  notes.documents = count_at(json, path, "documents");
  notes.bytes = count_at(json, path, "bytes");
  notes.path = path;
  return notes;
}

std::string notes_text(const TokenNotes& notes) {
  Json json = {{"tokenizer", notes.tokenizer},
               {"model", notes.model},
               {"vocabulary", notes.vocabulary},
               {"end_of_document", notes.end_of_document},
               {"start_of_text", notes.start_of_text ? Json(*notes.start_of_text) : Json()},
               {"tokens", notes.tokens},
               {"documents", notes.documents},
               {"bytes", notes.bytes}};
  if (notes.model_crc32c) json["model_crc32c"] = *notes.model_crc32c;
  return json.dump(2) + "\n";
}

void check_same_tokenizer(const TokenNotes& a, const TokenNotes& b) {
  const auto refuse = [&](std::string_view what, const auto& of_a, const auto& of_b) {
    throw input_error(
        "{} and {}: their tokens are of different tokenizers ({} {} and {}); make both with `keel tokenize` and one "
        "--model",
        a.path, b.path, what, of_a, of_b);
  };
  if (a.tokenizer != b.tokenizer) refuse("kind", a.tokenizer, b.tokenizer);
  if (a.vocabulary != b.vocabulary) refuse("vocabulary", a.vocabulary, b.vocabulary);
  if (a.end_of_document != b.end_of_document) refuse("end of document", a.end_of_document, b.end_of_document);
  const auto or_none = [](const std::optional<int64_t>& id) { return id ? fmt::to_string(*id) : "none"; };
  if (a.start_of_text != b.start_of_text) refuse("start of text", or_none(a.start_of_text), or_none(b.start_of_text));
  if (a.model_crc32c && b.model_crc32c && a.model_crc32c != b.model_crc32c)
    refuse("CRC32C of the model", *a.model_crc32c, *b.model_crc32c);
}

}  // namespace keel::data
