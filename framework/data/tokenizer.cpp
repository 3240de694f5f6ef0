#include "framework/data/tokenizer.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <array>

#include "framework/base/error.h"
#include "framework/data/utf8.h"

namespace keel::data {
namespace {

// SentencePiece writes a space as this character, so that the character itself has to go as bytes.
constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581
// Texts with this character are skipped by its trainer.
constexpr std::string_view reserved_mark = "\xE2\x96\x85";  // U+2585

constexpr size_t training_text_bytes = 4096;  // of one "sentence"
constexpr int64_t least_vocabulary = 320;     // 256 bytes, unknown, end of document, and some letters

class ByteTokenizer : public Tokenizer {
 public:
  std::string kind() const override { return "bytes"; }
  int64_t vocabulary() const override { return 257; }
  int32_t end_of_document() const override { return 256; }
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
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

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) {
    if (auto status = model_.Load(path); !status.ok())
      throw input_error("{}: not a SentencePiece model: {}", path, status.ToString());
    if (model_.eos_id() < 0) throw input_error("{}: the model has no end-of-sentence id to end documents with", path);
    byte_ids_.fill(-1);
    for (int id = 0; id < model_.GetPieceSize(); ++id) add_piece(id);
    keeps_bytes_ = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  }

  std::string kind() const override { return "sentencepiece"; }
  int64_t vocabulary() const override { return model_.GetPieceSize(); }
  int32_t end_of_document() const override { return model_.eos_id(); }
  void encode(std::string_view text, std::vector<int32_t>& ids) const override;
  void decode(std::span<const int32_t> ids, std::string& text) const override;

 private:
  void add_piece(int id);
  void encode_clean(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_bytes(std::string_view bytes, std::vector<int32_t>& ids) const {
    for (char c : bytes) ids.push_back(byte_ids_[uint8_t(c)]);
  }

  sentencepiece::SentencePieceProcessor model_;
  std::vector<std::string> texts_;       // of every id
  std::array<int32_t, 256> byte_ids_{};  // of every byte, or -1
  bool keeps_bytes_ = false;             // the model has a piece for every byte
};

void SentencePieceTokenizer::add_piece(int id) {
  std::string piece = model_.IdToPiece(id), text;
  if (model_.IsByte(id)) {
    const int byte = std::stoi(piece.substr(3, 2), nullptr, 16);  // "<0x41>"
    byte_ids_[size_t(byte)] = id;
    text = char(byte);
  } else if (!model_.IsControl(id) && !model_.IsUnknown(id)) {
    for (size_t at = 0, mark = 0; at < piece.size(); at = mark + space_mark.size()) {
      mark = std::min(piece.find(space_mark, at), piece.size());
      text.append(piece, at, mark - at).append(mark < piece.size() ? " " : "");
    }
  }
  texts_.push_back(std::move(text));
}

void SentencePieceTokenizer::encode_clean(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  std::vector<int> pieces;
  if (auto status = model_.Encode(text, &pieces); !status.ok())
    throw Error(ErrorKind::internal, "SentencePiece cannot encode: " + status.ToString());
  ids.insert(ids.end(), pieces.begin(), pieces.end());
}

// What SentencePiece would change (its own mark for spaces, bytes that are no UTF-8) goes around it.
void SentencePieceTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  if (!keeps_bytes_) return encode_clean(text, ids);
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, valid_prefix_bytes(text));
    const size_t clean = std::min(valid.find(space_mark), valid.size());
    encode_clean(valid.substr(0, clean), ids);
    text.remove_prefix(clean);
    const size_t odd = clean < valid.size() ? space_mark.size() : std::min<size_t>(1, text.size());
    encode_bytes(text.substr(0, odd), ids);
    text.remove_prefix(odd);
  }
}

void SentencePieceTokenizer::decode(std::span<const int32_t> ids, std::string& text) const {
  for (int32_t id : ids) {
    if (id < 0 || size_t(id) >= texts_.size())
      throw input_error("id {} is outside the model's vocabulary of {}", id, texts_.size());
    text += texts_[size_t(id)];
  }
}

// Hands texts to the trainer in pieces that end at a line where they can; it sees words, so that cuts cost little.
class TrainingTexts : public sentencepiece::SentenceIterator {
 public:
  explicit TrainingTexts(std::span<const std::string> texts) : texts_(texts) { Next(); }
  bool done() const override { return done_; }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    while (rest_.empty() && !texts_.empty()) {
      rest_ = texts_.front();
      texts_ = texts_.subspan(1);
    }
    done_ = rest_.empty();
    size_t cut = cut_between_characters(rest_, training_text_bytes);
    const size_t line = rest_.substr(0, cut).rfind('\n');
    if (cut < rest_.size() && line != rest_.npos) cut = line + 1;
    value_ = cleaned(rest_.substr(0, cut));
    rest_.remove_prefix(cut);
  }

 private:
  static std::string cleaned(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      const size_t valid = std::min({valid_prefix_bytes(text), text.find(reserved_mark), text.find('\0')});
      out += text.substr(0, valid);
      text.remove_prefix(valid);
      text.remove_prefix(text.starts_with(reserved_mark) ? reserved_mark.size() : std::min<size_t>(1, text.size()));
    }
    return out;
  }

  std::span<const std::string> texts_;
  std::string_view rest_;
  std::string value_;
  bool done_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

std::unique_ptr<Tokenizer> sentencepiece_tokenizer(const std::string& model_path) {
  return std::make_unique<SentencePieceTokenizer>(model_path);
}

std::unique_ptr<Tokenizer> tokenizer_of(const TokenNotes& notes) {
  if (notes.tokenizer != "bytes" && notes.tokenizer != "sentencepiece")
    throw input_error("the tokenizer '{}' is unknown; bytes and sentencepiece are known", notes.tokenizer);
  auto tokenizer = notes.tokenizer == "bytes" ? byte_tokenizer() : sentencepiece_tokenizer(notes.model_path());
  if (tokenizer->vocabulary() != notes.vocabulary || tokenizer->end_of_document() != notes.end_of_document)
    throw input_error("{}: the tokens were made with {} ids, {} ending documents, but the tokenizer has {} and {}",
                      notes.model.empty() ? notes.tokenizer : notes.model_path(), notes.vocabulary,
                      notes.end_of_document, tokenizer->vocabulary(), tokenizer->end_of_document());
  return tokenizer;
}

std::string train_sentencepiece(std::span<const std::string> texts, int64_t vocabulary) {
  if (vocabulary < least_vocabulary)
    throw input_error("a SentencePiece vocabulary of {} is too small; {} is the least (256 are single bytes)",
                      vocabulary, least_vocabulary);
  TrainingTexts sentences(texts);
  std::string model;
  auto status =
      sentencepiece::SentencePieceTrainer::Train({{"model_type", "bpe"},
                                                  {"vocab_size", std::to_string(vocabulary)},
                                                  {"byte_fallback", "true"},
                                                  {"normalization_rule_name", "identity"},
                                                  {"remove_extra_whitespaces", "false"},
                                                  {"add_dummy_prefix", "false"},
                                                  {"allow_whitespace_only_pieces", "true"},
                                                  {"split_digits", "true"},
                                                  {"unk_id", "0"},
                                                  {"eos_id", "1"},
                                                  {"bos_id", "-1"},
                                                  {"pad_id", "-1"},
                                                  {"max_sentence_length", std::to_string(training_text_bytes)},
                                                  {"num_threads", "1"},
                                                  {"minloglevel", "2"}},
                                                 &sentences, &model);
  if (!status.ok()) throw input_error("SentencePiece cannot train {} ids: {}", vocabulary, status.ToString());
  return model;
}

}  // namespace keel::data
