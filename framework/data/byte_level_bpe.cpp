// Text to ids and back by a ByteLevelModel.
#include <algorithm>
#include <array>
#include <queue>

#include "framework/base/error.h"
#include "framework/data/tokenizer.h"
#include "framework/data/tokenizer_json.h"
#include "framework/data/unicode_text.h"

namespace keel::data {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
}

// The symbols of one word as a linked list, merged in the order of the merges' ranks, the leftmost first.
class Word {
 public:
  struct Merge {
    int32_t rank = 0, id = 0;
  };
  using Merges = std::unordered_map<uint64_t, Merge>;

  Word(std::string_view bytes, const std::array<int32_t, 256>& byte_ids, const Merges& merges) : merges_(merges) {
    const int32_t last = int32_t(bytes.size()) - 1;
    for (int32_t i = 0; i <= last; ++i)
      symbols_.push_back({byte_ids[uint8_t(bytes[size_t(i)])], i - 1, i < last ? i + 1 : -1});
    for (int32_t i = 0; i < last; ++i) propose(i);
    while (!queue_.empty()) {
      const Candidate next = queue_.top();
      queue_.pop();
      apply(next);
    }
  }

  void append_to(std::vector<int32_t>& ids) const {
    for (const Symbol& symbol : symbols_)
      if (symbol.id >= 0) ids.push_back(symbol.id);
  }

 private:
  struct Symbol {
    int32_t id, before, after;  // id -1: merged into the one before; -1: no neighbour
  };
  struct Candidate {
    int32_t rank, at, left, right;  // the ids at the time: a pair that has changed since is not merged
    bool operator>(const Candidate& other) const { return std::pair(rank, at) > std::pair(other.rank, other.at); }
  };

  void propose(int32_t at) {
    if (at < 0 || symbols_[size_t(at)].after < 0) return;
    const int32_t left = symbols_[size_t(at)].id, right = symbols_[size_t(symbols_[size_t(at)].after)].id;
    const auto found = merges_.find(pair_key(left, right));
    if (found != merges_.end()) queue_.push({found->second.rank, at, left, right});
  }
  void apply(const Candidate& merge) {
    Symbol& left = symbols_[size_t(merge.at)];
    if (left.id != merge.left || left.after < 0 || symbols_[size_t(left.after)].id != merge.right) return;
    Symbol& right = symbols_[size_t(left.after)];
    left.id = merges_.at(pair_key(merge.left, merge.right)).id;
    left.after = right.after;
    if (right.after >= 0) symbols_[size_t(right.after)].before = merge.at;
    right.id = -1;
    propose(left.before);
    propose(merge.at);
  }

  const Merges& merges_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue_;
};

class ByteLevelBpe : public Tokenizer {
 public:
  ByteLevelBpe(const std::string& path, std::optional<int32_t> end_of_document) : model_(read_tokenizer_json(path)) {
    start_of_text_ = model_.start_of_text;
    end_of_document_ = end_of_document ? *end_of_document : read_end_of_text(path, model_);
    for (const CutPattern& pattern : model_.patterns) patterns_.emplace_back(pattern.expression, path);
    for (int byte = 0; byte < 256; ++byte) byte_ids_[size_t(byte)] = model_.ids.at(std::string(1, char(byte)));
    for (const auto& [bytes, id] : model_.ids) set_text(id, bytes);
    for (const AddedToken& token : model_.added) {
      set_text(token.id, token.special ? "" : token.text);
      added_by_first_byte_[uint8_t(token.text[0])].push_back(&token);
    }
    for (auto& tokens : added_by_first_byte_)  // the longest that fits is meant
      std::sort(tokens.begin(), tokens.end(), [](auto* a, auto* b) { return a->text.size() > b->text.size(); });
    if (end_of_document_ < 0 || end_of_document_ >= vocabulary())
      throw input_error("{}: documents are said to end with id {}, and it has {} ids", path, end_of_document_,
                        vocabulary());
    index_merges(path);
  }

  std::string kind() const override { return "byte_level_bpe"; }
  int64_t vocabulary() const override { return int64_t(texts_.size()); }
  int32_t end_of_document() const override { return end_of_document_; }
  void encode(std::string_view text, std::vector<int32_t>& ids, bool begins) const override;
  void decode(std::span<const int32_t> ids, std::string& text) const override;

 private:
  void set_text(int32_t id, const std::string& text) {
    if (size_t(id) >= texts_.size()) texts_.resize(size_t(id) + 1);
    texts_[size_t(id)] = text;
  }
  void index_merges(const std::string& path);
  const AddedToken* added_at(std::string_view text) const;
  void encode_plain(std::string_view text, std::vector<int32_t>& ids, bool begins) const;
  void encode_piece(std::string_view piece, size_t pattern, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

  ByteLevelModel model_;
  int32_t end_of_document_ = 0;
  std::vector<UnicodePattern> patterns_;
  std::array<int32_t, 256> byte_ids_{};
  std::array<std::vector<const AddedToken*>, 256> added_by_first_byte_;
  Word::Merges merges_;
  std::vector<std::string> texts_;  // of every id
};

void ByteLevelBpe::index_merges(const std::string& path) {
  for (size_t rank = 0; rank < model_.merges.size(); ++rank) {
    const auto [left, right] = model_.merges[rank];
    const auto merged = model_.ids.find(texts_[size_t(left)] + texts_[size_t(right)]);
    if (merged == model_.ids.end()) throw input_error("{}: merge {} makes no symbol of bytes", path, rank);
    merges_.try_emplace(pair_key(left, right), Word::Merge{int32_t(rank), merged->second});
  }
}

const AddedToken* ByteLevelBpe::added_at(std::string_view text) const {
  for (const AddedToken* token : added_by_first_byte_[uint8_t(text[0])])
    if (text.starts_with(token->text)) return token;
  return nullptr;
}

// What follows an added token is a text of its own, as tokenizers have it.
void ByteLevelBpe::encode(std::string_view text, std::vector<int32_t>& ids, bool begins) const {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = added_at(text.substr(at));
    if (!token) {
      ++at;
      continue;
    }
    encode_plain(text.substr(begin, at - begin), ids, begins || begin > 0);
    ids.push_back(token->id);
    begin = at += token->text.size();
  }
  encode_plain(text.substr(begin), ids, begins || begin > 0);
}

void ByteLevelBpe::encode_plain(std::string_view text, std::vector<int32_t>& ids, bool begins) const {
  if (text.empty()) return;
  std::string changed(model_.compose ? composed(text) : "");
  if (model_.compose) text = changed;
  if (begins && model_.space_in_front && !text.starts_with(' ')) text = changed = " " + std::string(text);
  encode_piece(text, 0, ids);
}

void ByteLevelBpe::encode_piece(std::string_view piece, size_t pattern, std::vector<int32_t>& ids) const {
  if (pattern == patterns_.size()) return encode_word(piece, ids);
  patterns_[pattern].split(piece, model_.patterns[pattern].keeps_between,
                           [&](std::string_view part) { encode_piece(part, pattern + 1, ids); });
}

void ByteLevelBpe::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  const auto whole = model_.whole_words ? model_.ids.find(std::string(word)) : model_.ids.end();
  if (whole != model_.ids.end()) return ids.push_back(whole->second);
  Word(word, byte_ids_, merges_).append_to(ids);
}

void ByteLevelBpe::decode(std::span<const int32_t> ids, std::string& text) const {
  for (int32_t id : ids) {
    if (id < 0 || size_t(id) >= texts_.size())
      throw input_error("id {} is outside the tokenizer's vocabulary of {}", id, texts_.size());
    text += texts_[size_t(id)];
  }
}

}  // namespace

std::unique_ptr<Tokenizer> byte_level_tokenizer(const std::string& path, std::optional<int32_t> end_of_document) {
  return std::make_unique<ByteLevelBpe>(path, end_of_document);
}

}  // namespace keel::data
