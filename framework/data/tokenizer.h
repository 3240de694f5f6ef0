// Text to token ids and back. The tokenizers keep every byte: decode(encode(x)) == x, spaces, newlines, control
// characters and bytes that are no UTF-8 included. (A model made elsewhere keeps what its own normalisation and pattern
// keep, and a SentencePiece one without byte pieces writes unknown characters as its unknown id.)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/data/notes.h"

namespace keel::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;  // "bytes", "sentencepiece" or "byte_level_bpe", as in the notes
  virtual int64_t vocabulary() const = 0;
  // The id that follows each document's text; it decodes to nothing.
  virtual int32_t end_of_document() const = 0;
  // The id that precedes each document's text, where there is one: of a tokenizer.json what its template puts there, of
  // SentencePiece the beginning of a sentence. It decodes to nothing.
  std::optional<int32_t> start_of_text() const { return start_of_text_; }
  // Of token files that were made without it, and of models trained on them.
  void leave_out_start_of_text() { start_of_text_.reset(); }
  // Every document of a token file and every prompt begins with what this appends; encode does not do it.
  void begin_document(std::vector<int32_t>& ids) const {
    if (start_of_text_) ids.push_back(*start_of_text_);
  }
  // Appends the ids of the text. `begins`: it begins a document, or a prompt; a tokenizer that puts a space in front of
  // texts puts none within one. May be called by several threads at once.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids, bool begins = true) const = 0;
  // Appends the text of the ids, which may end within a character. Errors: an id outside the vocabulary.
  virtual void decode(std::span<const int32_t> ids, std::string& text) const = 0;

 protected:
  std::optional<int32_t> start_of_text_;
};

// 257 ids: 0 to 255 are bytes, 256 ends a document.
std::unique_ptr<Tokenizer> byte_tokenizer();

// Errors: a file that is no SentencePiece model, or a model without an end-of-sentence id.
std::unique_ptr<Tokenizer> sentencepiece_tokenizer(const std::string& model_path);

// A byte-level BPE from a tokenizer.json. Without `end_of_document`, tokenizer_config.json beside it says which id that
// is. A special token decodes to nothing, and is recognised where a text spells it.
std::unique_ptr<Tokenizer> byte_level_tokenizer(const std::string& path,
                                                std::optional<int32_t> end_of_document = std::nullopt);

// By what is there: a .model of SentencePiece, a tokenizer.json, or a folder that holds one of them (tokenizer.json
// where it is a byte-level BPE, else tokenizer.model).
std::unique_ptr<Tokenizer> tokenizer_at(const std::string& path);
// The file that it is read from, and the checksum of that.
std::string tokenizer_file(const std::string& path);
int64_t tokenizer_crc32c(const std::string& path);

// The tokenizer that made a token file, as it made it. Errors: an unknown kind, a model that is missing or another one.
std::unique_ptr<Tokenizer> tokenizer_of(const TokenNotes& notes);

// Trains a SentencePiece model (BPE over words, bytes for rare characters, no normalisation) and returns the bytes of
// its .model file: the same for the same texts. Errors: what SentencePiece says, such as a vocabulary too large.
std::string train_sentencepiece(std::span<const std::string> texts, int64_t vocabulary);

}  // namespace keel::data
