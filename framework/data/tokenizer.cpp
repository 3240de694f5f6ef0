#include "framework/data/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "framework/base/error.h"
#include "framework/data/tokenizer_json.h"
#include "framework/io/files.h"

namespace keel::data {
namespace {

constexpr uint64_t kLargestTokenizer_bytes = uint64_t(1) << 28;

class ByteTokenizer : public Tokenizer {
 public:
  std::string kind() const override { return "bytes"; }
  int64_t vocabulary() const override { return 257; }
  int32_t end_of_document() const override { return 256; }
  void encode(std::string_view text, std::vector<int32_t>& ids, bool) const override {
    const size_t before = ids.size();
    ids.resize(before + text.size());
    std::transform(text.begin(), text.end(), ids.begin() + ptrdiff_t(before), [](char c) { return uint8_t(c); });
  }
  void decode(std::span<const int32_t> ids, std::string& text) const override {
    for (int32_t id : ids) {
      if (id < 0 || id > 256) throw input_error("id {} is outside the vocabulary of 257 bytes", id);
      if (id < 256) text += char(id);
    }
  }
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

std::string tokenizer_file(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) return path;
  const std::string json = path + "/tokenizer.json", model = path + "/tokenizer.model";
  if (fs::exists(json) && (!fs::exists(model) || is_byte_level(json))) return json;
  if (fs::exists(model)) return model;
  throw input_error("{}: holds neither tokenizer.json nor tokenizer.model", path);
}

int64_t tokenizer_crc32c(const std::string& path) {
  return io::crc32c_of_file(tokenizer_file(path), kLargestTokenizer_bytes);
}

std::unique_ptr<Tokenizer> tokenizer_at(const std::string& path) {
  const std::string file = tokenizer_file(path);
  return file.ends_with(".json") ? byte_level_tokenizer(file) : sentencepiece_tokenizer(file);
}

std::unique_ptr<Tokenizer> tokenizer_of(const TokenNotes& notes) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (notes.tokenizer == "bytes")
    tokenizer = byte_tokenizer();
  else if (notes.tokenizer == "sentencepiece")
    tokenizer = sentencepiece_tokenizer(notes.model_path());
  else if (notes.tokenizer == "byte_level_bpe")
    tokenizer = byte_level_tokenizer(notes.model_path(), int32_t(notes.end_of_document));
  else
    throw input_error("the tokenizer '{}' is unknown; bytes, sentencepiece and byte_level_bpe are known",
                      notes.tokenizer);
  if (tokenizer->vocabulary() != notes.vocabulary || tokenizer->end_of_document() != notes.end_of_document)
    throw input_error("{}: the tokens were made with {} ids, {} ending documents, but the tokenizer has {} and {}",
                      notes.model.empty() ? notes.tokenizer : notes.model_path(), notes.vocabulary,
                      notes.end_of_document, tokenizer->vocabulary(), tokenizer->end_of_document());
  if (notes.model_crc32c && *notes.model_crc32c != tokenizer_crc32c(notes.model_path()))
    throw input_error(
        "{}: not the file that made the tokens of {} (its CRC32C is {}, that one's {}); put that one back, "
        "or run `keel tokenize` again",
        notes.model_path(), notes.path, tokenizer_crc32c(notes.model_path()), *notes.model_crc32c);
  if (!notes.start_of_text)
    tokenizer->leave_out_start_of_text();
  else if (tokenizer->start_of_text() != notes.start_of_text)
    throw input_error("{}: documents of the tokens begin with id {}, those of the tokenizer with {}",
                      notes.model_path(), *notes.start_of_text,
                      tokenizer->start_of_text() ? fmt::to_string(*tokenizer->start_of_text()) : "none");
  return tokenizer;
}

}  // namespace keel::data
