#include <sentencepiece_trainer.h>

#include <algorithm>

#include "framework/base/error.h"
#include "framework/base/utf8.h"
#include "framework/data/tokenizer.h"

namespace keel::data {
namespace {

// Texts with this character are skipped by the trainer.
constexpr std::string_view kReservedMark = "\xE2\x96\x85";  // U+2585

constexpr size_t kTrainingText_bytes = 4096;  // of one "sentence"
constexpr int64_t kLeastVocabulary = 320;     // 256 bytes, unknown, end of document, and some letters

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
    size_t cut = cut_between_characters(rest_, kTrainingText_bytes);
    const size_t line = rest_.substr(0, cut).rfind('\n');
    if (cut < rest_.size() && line != rest_.npos) cut = line + 1;
    value_ = cleaned(rest_.substr(0, cut));
    rest_.remove_prefix(cut);
  }

 private:
  static std::string cleaned(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      const size_t valid = std::min({valid_prefix_bytes(text), text.find(kReservedMark), text.find('\0')});
      out += text.substr(0, valid);
      text.remove_prefix(valid);
      text.remove_prefix(text.starts_with(kReservedMark) ? kReservedMark.size() : std::min<size_t>(1, text.size()));
    }
    return out;
  }

  std::span<const std::string> texts_;
  std::string_view rest_;
  std::string value_;
  bool done_ = false;
};

}  // namespace

std::string train_sentencepiece(std::span<const std::string> texts, int64_t vocabulary) {
  if (vocabulary < kLeastVocabulary)
    throw input_error("a SentencePiece vocabulary of {} is too small; {} is the least (256 are single bytes)",
                      vocabulary, kLeastVocabulary);
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
                                                  {"max_sentence_length", std::to_string(kTrainingText_bytes)},
                                                  {"num_threads", "1"},
                                                  {"minloglevel", "2"}},
                                                 &sentences, &model);
  if (!status.ok()) throw input_error("SentencePiece cannot train {} ids: {}", vocabulary, status.ToString());
  return model;
}

}  // namespace keel::data
