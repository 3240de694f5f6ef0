// Token files: a long row of token ids cut into documents, memory-mapped. Formats, told apart by their headers:
//   PREFIX.bin + PREFIX.idx   Megatron's pair: bare ids, and an index of sequences and documents (token_format.h)
//   X.bin                     llm.c's: 256 int32 of header, then uint16 (GPT-2) or uint32 (Llama 3) ids
//   X.npy                     NumPy's, one dimension: uint8, uint16, int32, uint32 or int64
//   any file                  ids without a header, where the caller says their type: OLMo-core's and dolma's .npy
// All but the first know no documents and count as one. Every header, size, pointer and boundary is checked on opening;
// every error names the file, the byte and the value. PREFIX.json (notes.h) is read where there is one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "framework/base/error.h"
#include "framework/data/mapped_file.h"
#include "framework/data/notes.h"

namespace keel::data {

enum class TokenType { uint8, uint16, int32, uint32, int64 };
int size_bytes_of(TokenType type);
std::string_view name_of(TokenType type);

// The smallest type of the pair that holds ids 0 .. vocabulary-1: uint8, uint16 or int32.
TokenType smallest_type(int64_t vocabulary);

// The notes of the pair that `path` names, by its prefix or by either file, which need not be there themselves. Bare
// ids have none, whatever lies beside them.
std::optional<TokenNotes> notes_of(const std::string& path);

// The files that a pattern such as data/shard_*.bin names, in order: those of its matches that end in .bin or .npy, but
// no X-valid.bin beside X.bin, which is held-out text of `keel tokenize`. `path` itself where it is no pattern.
std::vector<std::string> matching_files(const std::string& path);

class TokenFile {
 public:
  // `path` is the prefix of a pair, either of its files, or an llm.c or NumPy file; with a type, ids without a header.
  explicit TokenFile(const std::string& path, std::optional<TokenType> type = std::nullopt);

  const std::string& path() const { return tokens_file_.path(); }  // the file that holds the ids
  int64_t tokens() const { return tokens_; }
  TokenType type() const { return type_; }
  const std::optional<TokenNotes>& notes() const { return notes_; }

  // Whether the file says where documents begin; without an index it counts as one document.
  bool knows_documents() const { return boundaries_byte_ != 0; }
  int64_t documents() const { return documents_; }
  // The first token of a document, in [0, documents()]; document_start(documents()) is tokens(). O(1).
  int64_t document_start(int64_t document) const;
  // The document that holds this token. O(log documents). Empty documents hold none.
  int64_t document_of(int64_t token) const;

  // Copies ids [offset, offset + out.size()) of the file. Errors: a range outside the file, an id beyond int32.
  void read(int64_t offset, std::span<int32_t> out) const;

  // Errors: notes that speak of more ids than the model's vocabulary.
  void check_vocabulary(int64_t vocabulary) const;
  // Scans every id, in parallel. Errors: those of check_vocabulary; the first one outside [0, vocabulary), with file,
  // document and offset.
  void verify_ids(int64_t vocabulary, int part = 0, int parts = 1) const;
  // The error for an id outside [0, vocabulary), which `fill` of a dataset raises too.
  Error id_error(int64_t offset, int64_t vocabulary) const;

  // A hash of the type, the size and up to 64 blocks of 4 KiB spread over the file.
  uint64_t content_hash() const;

 private:
  int64_t id_at(int64_t offset) const;

  MappedFile tokens_file_;
  MappedFile index_file_;
  int64_t first_byte_ = 0;  // of the ids in tokens_file_
  int64_t tokens_ = 0;
  TokenType type_ = TokenType::uint16;
  int64_t documents_ = 1;
  int64_t sequences_ = 0;        // of the index
  int64_t pointers_byte_ = 0;    // where the index holds int64 pointers[sequences]
  int64_t boundaries_byte_ = 0;  // where it holds int64 boundaries[documents + 1]
  std::optional<TokenNotes> notes_;
};

}  // namespace keel::data
