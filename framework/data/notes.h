// PREFIX.json: what `keel tokenize` knows of a token file and the pair cannot say. Readers use it where it is there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace keel::data {

struct TokenNotes {
  std::string tokenizer = {};                 // "bytes", "sentencepiece" or "byte_level_bpe"
  std::string model = {};                     // path of its file, relative to the notes' folder; "" for bytes
  std::optional<int64_t> model_crc32c = {};   // of that file; older notes have none
  int64_t vocabulary = 0;                     // ids are in [0, vocabulary)
  int64_t end_of_document = 0;                // the id that ends every document
  std::optional<int64_t> start_of_text = {};  // the id that begins every document, where one does
  int64_t tokens = 0;                         // with those that begin and end documents
  int64_t documents = 0;
  int64_t bytes = 0;  // of text behind the tokens: nats per byte = nats of all of them / bytes

  std::string path = {};  // where the notes were found, not stored
  std::string model_path() const;
};

// Errors: a file that is no JSON object, a missing key, a value of the wrong type, all naming the file and the key.
std::optional<TokenNotes> read_notes(const std::string& prefix);
std::string notes_text(const TokenNotes& notes);
// Errors: notes of different tokenizers; both are named, with what differs. What older notes do not say is not
// compared.
void check_same_tokenizer(const TokenNotes& a, const TokenNotes& b);

}  // namespace keel::data
