#include "framework/data/tokenizer_json.h"

#include <algorithm>
#include <filesystem>

#include "framework/base/error.h"
#include "framework/io/foreign_json.h"

namespace keel::data {
namespace {

using io::excerpt;
using Json = io::ForeignJson;

constexpr uint64_t kLargest_bytes = uint64_t(1) << 28;
constexpr uint64_t kMostIds = 1 << 22;  // some vocabularies have a million

// What GPT-2's own pre-tokenizer cuts by.
constexpr const char* kDefaultPattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The bytes that printable characters of a vocabulary stand for: those of Latin-1 that print stand for themselves, the
// rest for characters from U+0100 on.
const std::unordered_map<uint32_t, uint8_t>& byte_of_character() {
  static const auto table = [] {
    std::unordered_map<uint32_t, uint8_t> bytes;
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      bytes[prints ? byte : next++] = uint8_t(byte);
    }
    return bytes;
  }();
  return table;
}

// The bytes of a symbol; nothing where a character stands for none.
std::optional<std::string> bytes_of(const std::string& symbol) {
  std::string bytes;
  for (size_t i = 0; i < symbol.size();) {
    const auto lead = uint8_t(symbol[i]);
    const bool two = lead >= 0xc0 && lead < 0xe0 && i + 1 < symbol.size();
    const uint32_t character = two ? uint32_t(lead & 31) << 6 | uint32_t(uint8_t(symbol[i + 1]) & 63) : lead;
    const auto found = byte_of_character().find(character);
    if (found == byte_of_character().end() || (!two && lead > 127)) return std::nullopt;
    bytes += char(found->second);
    i += two ? 2 : 1;
  }
  return bytes;
}

class TokenizerJsonReader {
 public:
  explicit TokenizerJsonReader(const std::string& path)
      : path_(path), json_(io::read_foreign_json(path, kLargest_bytes)) {}
  ByteLevelModel model();

 private:
  template <class... Args>
  Error error(fmt::format_string<Args...> format, Args&&... args) const {
    return input_error("{}: {}", path_, fmt::format(format, std::forward<Args>(args)...));
  }
  static std::string type_of(const Json& part) {
    return part.is_object() && part.contains("type") && part["type"].is_string() ? part["type"].get<std::string>() : "";
  }
  // Of symbols, of added tokens, of the template.
  int32_t id_of(const Json& id, const std::string& token) const;
  void read_normalizer(const Json& normalizer);
  void read_split(const Json& split);
  void read_pre_tokenizer(const Json& part);
  void read_model(const Json& model);
  void read_merges(const Json& merges, const std::unordered_map<std::string, int32_t>& vocabulary);
  void read_added(const Json& added);
  void read_post_processor(const Json& part);

  std::string path_;
  Json json_;
  ByteLevelModel out_;
  bool byte_level_ = false;
};

int32_t TokenizerJsonReader::id_of(const Json& id, const std::string& token) const {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMostIds)
    throw error("the id of {} is {}, not a whole number from 0 to {}", excerpt(token), excerpt(id), kMostIds - 1);
  return id.get<int32_t>();
}

void TokenizerJsonReader::read_normalizer(const Json& normalizer) {
  if (normalizer.is_null()) return;
  const std::string type = type_of(normalizer);
  if (type == "NFC")
    out_.compose = true;
  else if (type == "Sequence")
    for (const Json& part : normalizer.value("normalizers", Json::array())) read_normalizer(part);
  else
    throw error("the normalizer {} is not known; NFC is", type);
}

// Removed and inverted: what does not match is removed.
void TokenizerJsonReader::read_split(const Json& split) {
  const Json pattern = split.value("pattern", Json::object());
  const std::string behavior = split.value("behavior", "");
  const bool inverted = split.value("invert", false);
  if (!(behavior == "Isolated" && !inverted) && !(behavior == "Removed" && inverted))
    throw error("of the pre-tokenizer Split, Isolated and inverted Removed are known, not {}", excerpt(split));
  if (!pattern.contains("Regex")) throw error("of the pre-tokenizer Split, a Regex is known, not {}", excerpt(pattern));
  if (byte_level_) throw error("a Split behind ByteLevel cuts symbols, not text, which is not known here");
  out_.patterns.push_back({pattern["Regex"].get<std::string>(), !inverted});
}

void TokenizerJsonReader::read_pre_tokenizer(const Json& part) {
  const std::string type = type_of(part);
  if (type == "Sequence") {
    for (const Json& inner : part.value("pretokenizers", Json::array())) read_pre_tokenizer(inner);
  } else if (type == "Split") {
    read_split(part);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    out_.space_in_front = part.value("add_prefix_space", true);
    if (out_.space_in_front && !out_.patterns.empty())
      throw error("add_prefix_space behind a Split puts a space before every piece, which is not known here");
    if (part.value("use_regex", true)) out_.patterns.push_back({kDefaultPattern});
  } else {
    throw error("the pre-tokenizer {} is not known; Split and ByteLevel are", type);
  }
}

void TokenizerJsonReader::read_model(const Json& model) {
  if (type_of(model) != "BPE") throw error("the model {} is not known; BPE is", type_of(model));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.contains(key) && model[key].is_string() && model[key] != "") throw error("model.{} is not known", key);
  if (model.value("byte_fallback", false)) throw error("model.byte_fallback belongs to another kind of BPE");
  out_.whole_words = model.value("ignore_merges", false);
  std::unordered_map<std::string, int32_t> vocabulary;
  for (const auto& [symbol, id] : model.at("vocab").items()) {
    vocabulary[symbol] = id_of(id, symbol);
    if (const auto bytes = bytes_of(symbol)) out_.ids[*bytes] = vocabulary[symbol];
  }
  for (int byte = 0; byte < 256; ++byte)
    if (!out_.ids.contains(std::string(1, char(byte)))) throw error("the vocabulary has no symbol for byte {}", byte);
  read_merges(model.at("merges"), vocabulary);
}

// A merge is "a b", or ["a", "b"] in newer files.
void TokenizerJsonReader::read_merges(const Json& merges, const std::unordered_map<std::string, int32_t>& vocabulary) {
  const auto id = [&](const std::string& symbol, const Json& merge) {
    const auto found = vocabulary.find(symbol);
    if (found == vocabulary.end() || !bytes_of(symbol))
      throw error("the merge {}: {} is not in the vocabulary, or no symbol of bytes", excerpt(merge), excerpt(symbol));
    return found->second;
  };
  for (const Json& merge : merges) {
    std::string left, right;
    if (merge.is_string()) {
      const std::string text = merge.get<std::string>();
      const size_t space = std::min(text.find(' '), text.size());
      left = text.substr(0, space);
      right = text.substr(std::min(space + 1, text.size()));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      throw error("{} is no merge", excerpt(merge));
    }
    id(left + right, merge);
    out_.merges.emplace_back(id(left, merge), id(right, merge));
  }
}

void TokenizerJsonReader::read_added(const Json& added) {
  for (const Json& token : added) {
    const std::string text = token.at("content").get<std::string>();
    if (text.empty()) throw error("an added token is empty");
    for (const char* key : {"lstrip", "rstrip", "single_word"})
      if (token.value(key, false)) throw error("the added token {}: {} is not known", excerpt(text), key);
    if (out_.compose && token.value("normalized", false))
      throw error("the added token {} is looked for in normalized text, which is not known here", excerpt(text));
    out_.added.push_back({text, id_of(token.at("id"), text), token.value("special", false)});
  }
}

// A template whose first piece is a special token puts that in front of every text.
void TokenizerJsonReader::read_post_processor(const Json& part) {
  const std::string type = type_of(part);
  if (type == "Sequence")
    for (const Json& inner : part.value("processors", Json::array())) read_post_processor(inner);
  if (!part.is_null() && type != "Sequence" && type != "ByteLevel" && type != "TemplateProcessing")
    throw error("the post-processor {} is not known; ByteLevel and TemplateProcessing are", type);
  if (type != "TemplateProcessing" || part.at("single").empty()) return;
  const Json& first = part.at("single").front();
  if (!first.contains("SpecialToken")) return;
  const std::string name = first["SpecialToken"].at("id").get<std::string>();
  const int32_t id = id_of(part.at("special_tokens").at(name).at("ids").at(0), name);
  if (std::none_of(out_.added.begin(), out_.added.end(), [&](const AddedToken& token) { return token.id == id; }))
    throw error("{} goes in front of every text, and its id {} is no added token's", excerpt(name), id);
  out_.start_of_text = id;
}

ByteLevelModel TokenizerJsonReader::model() {
  try {
    read_normalizer(json_.value("normalizer", Json()));
    read_pre_tokenizer(json_.value("pre_tokenizer", Json::object()));
    if (!byte_level_) throw error("is no byte-level BPE: the pre-tokenizer ByteLevel is missing");
    read_model(json_.at("model"));
    read_added(json_.value("added_tokens", Json::array()));
    read_post_processor(json_.value("post_processor", Json()));
  } catch (const Json::exception& failure) {
    throw error("not as a tokenizer.json is: {}", failure.what());
  }
  return std::move(out_);
}

}  // namespace

ByteLevelModel read_tokenizer_json(const std::string& path) {
  return TokenizerJsonReader(path).model();
}

bool is_byte_level(const std::string& path) {
  const Json json = io::read_foreign_json(path, kLargest_bytes);
  return json.value("pre_tokenizer", Json()).dump().find("\"ByteLevel\"") != std::string::npos;
}

int32_t read_end_of_text(const std::string& path, const ByteLevelModel& model) {
  const std::string beside = (std::filesystem::path(path).parent_path() / "tokenizer_config.json").string();
  const Json json = io::read_foreign_json(beside, kLargest_bytes);
  const Json token = json.value("eos_token", Json());
  const Json text = token.is_object() ? token.value("content", Json()) : token;
  for (const AddedToken& added : model.added)
    if (text == added.text) return added.id;
  throw input_error("{}: eos_token is {}, which {} does not have among its added tokens", beside, excerpt(text), path);
}

}  // namespace keel::data
