#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>

#include "framework/base/error.h"
#include "framework/base/utf8.h"
#include "framework/data/tokenizer.h"

namespace keel::data {
namespace {

// SentencePiece writes a space as this character, so that the character itself has to go as bytes.
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// The ids of words met before: words repeat, and SentencePiece takes microseconds for each.
class WordCache {
 public:
  static constexpr size_t most_word_bytes = 32, most_words = 1 << 14;  // of each part

  // Appends the ids of the word if they are known.
  bool append(std::string_view word, std::vector<int32_t>& ids) const {
    const Part& part = part_of(word);
    const std::lock_guard lock(part.mutex);
    const auto found = part.words.find(word);
    if (found == part.words.end()) return false;
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return true;
  }
  void remember(std::string_view word, std::span<const int32_t> ids) {
    Part& part = part_of(word);
    const std::lock_guard lock(part.mutex);
    if (part.words.size() < most_words) part.words.try_emplace(std::string(word), ids.begin(), ids.end());
  }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;  // so that a lookup copies no text
  };
  struct Part {
    mutable std::mutex mutex;
    std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> words;
  };
  const Part& part_of(std::string_view word) const {
    return parts_[std::hash<std::string_view>()(word) % parts_.size()];
  }
  Part& part_of(std::string_view word) { return parts_[std::hash<std::string_view>()(word) % parts_.size()]; }

  std::array<Part, 31> parts_;
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) {
    if (auto status = model_.Load(path); !status.ok())
      throw input_error("{}: not a SentencePiece model: {}", path, status.ToString());
    if (model_.eos_id() < 0) throw input_error("{}: the model has no end-of-sentence id to end documents with", path);
    if (model_.bos_id() >= 0) start_of_text_ = model_.bos_id();
    byte_ids_.fill(-1);
    for (int id = 0; id < model_.GetPieceSize(); ++id) add_piece(id);
    const bool keeps = keeps_spaces();
    if (!keeps) load_continued(path);
    words_stand_alone_ = pieces_begin_words_ && keeps;
    keeps_bytes_ = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  }

  std::string kind() const override { return "sentencepiece"; }
  int64_t vocabulary() const override { return model_.GetPieceSize(); }
  int32_t end_of_document() const override { return model_.eos_id(); }
  void encode(std::string_view text, std::vector<int32_t>& ids, bool begins) const override;
  void decode(std::span<const int32_t> ids, std::string& text) const override;

 private:
  void add_piece(int id);
  void load_continued(const std::string& path);
  bool keeps_spaces() const;
  void encode_clean(std::string_view text, std::vector<int32_t>& ids, bool begins) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  void encode_whole(std::string_view text, std::vector<int32_t>& ids, bool begins = true) const;
  void encode_bytes(std::string_view bytes, std::vector<int32_t>& ids) const {
    for (char c : bytes) ids.push_back(byte_ids_[uint8_t(c)]);
  }

  sentencepiece::SentencePieceProcessor model_;
  std::optional<sentencepiece::SentencePieceProcessor> continued_;  // for the middle of a text; none: model_
  std::vector<std::string> texts_;                                  // of every id
  std::array<int32_t, 256> byte_ids_{};                             // of every byte, or -1
  bool keeps_bytes_ = false;                                        // the model has a piece for every byte
  bool pieces_begin_words_ = true;                                  // no piece has a space after another character
  bool words_stand_alone_ = false;  // so that a text's ids are those of its words, one after the other
  mutable WordCache cache_;
};

void SentencePieceTokenizer::add_piece(int id) {
  std::string piece = model_.IdToPiece(id), text;
  if (model_.IsByte(id)) {
    const int byte = std::stoi(piece.substr(3, 2), nullptr, 16);  // "<0x41>"
    byte_ids_[size_t(byte)] = id;
    text = char(byte);
  } else if (!model_.IsControl(id) && !model_.IsUnknown(id)) {
    for (size_t at = 0, mark = 0; at < piece.size(); at = mark + kSpaceMark.size()) {
      mark = std::min(piece.find(kSpaceMark, at), piece.size());
      text.append(piece, at, mark - at).append(mark < piece.size() ? " " : "");
    }
  }
  const size_t letters = std::min(text.find_first_not_of(' '), text.size());
  pieces_begin_words_ = pieces_begin_words_ && text.find(' ', letters) == text.npos;
  texts_.push_back(std::move(text));
}

// Whether the model takes spaces as they come: none added in front, none dropped.
bool SentencePieceTokenizer::keeps_spaces() const {
  const std::string probe = " a  b c ";
  std::vector<int32_t> ids;
  std::string text;
  encode_whole(probe, ids);
  decode(ids, text);
  return text == probe;
}

// The same model, which puts no space in front of a text: messages of Protocol Buffers that stand one behind the other
// are merged, and normalizer_spec (3) is given add_dummy_prefix (3): false.
void SentencePieceTokenizer::load_continued(const std::string& path) {
  constexpr std::string_view kNoDummyPrefix("\x1a\x02\x18\x00", 4);
  const std::string changed = model_.serialized_model_proto() + std::string(kNoDummyPrefix);
  if (auto status = continued_.emplace().LoadFromSerializedProto(changed); !status.ok())
    throw input_error("{}: not a SentencePiece model: {}", path, status.ToString());
}

void SentencePieceTokenizer::encode_whole(std::string_view text, std::vector<int32_t>& ids, bool begins) const {
  std::vector<int> pieces;
  const auto& model = continued_ && !begins ? *continued_ : model_;
  if (auto status = model.Encode(text, &pieces); !status.ok())
    throw Error(ErrorKind::internal, "SentencePiece cannot encode: " + status.ToString());
  ids.insert(ids.end(), pieces.begin(), pieces.end());
}

void SentencePieceTokenizer::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  const bool cached = word.size() <= WordCache::most_word_bytes;
  if (cached && cache_.append(word, ids)) return;
  const size_t before = ids.size();
  encode_whole(word, ids);
  if (cached) cache_.remember(word, std::span(ids).subspan(before));
}

// A word is its spaces in front and what follows them up to the next space.
void SentencePieceTokenizer::encode_clean(std::string_view text, std::vector<int32_t>& ids, bool begins) const {
  if (!words_stand_alone_ && !text.empty()) return encode_whole(text, ids, begins);
  while (!text.empty()) {
    const size_t letters = std::min(text.find_first_not_of(' '), text.size());
    const size_t end = std::min(text.find(' ', letters), text.size());
    encode_word(text.substr(0, end), ids);
    text.remove_prefix(end);
  }
}

// What SentencePiece would change (its own mark for spaces, bytes that are no UTF-8) goes around it.
void SentencePieceTokenizer::encode(std::string_view text, std::vector<int32_t>& ids, bool begins) const {
  if (!keeps_bytes_) return encode_clean(text, ids, begins);
  for (; !text.empty(); begins = false) {
    std::string_view valid = text.substr(0, valid_prefix_bytes(text));
    text.remove_prefix(valid.size());
    for (; !valid.empty(); begins = false) {
      const size_t clean = std::min(valid.find(kSpaceMark), valid.size());
      encode_clean(valid.substr(0, clean), ids, begins);
      valid.remove_prefix(clean);
      const size_t mark = std::min(kSpaceMark.size(), valid.size());
      encode_bytes(valid.substr(0, mark), ids);
      valid.remove_prefix(mark);
    }
    const size_t odd = std::min<size_t>(1, text.size());
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

}  // namespace

std::unique_ptr<Tokenizer> sentencepiece_tokenizer(const std::string& model_path) {
  return std::make_unique<SentencePieceTokenizer>(model_path);
}

}  // namespace keel::data
