// Writes the pair PREFIX.bin and PREFIX.idx (token_format.h), and PREFIX.json (notes.h) where there are notes, as
// tokens come, in memory that does not grow with them. The files carry temporary names until commit(); without it they
// are removed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/data/token_file.h"
#include "framework/io/files.h"

namespace keel::data {

class TokenWriter {
 public:
  // The type is the smallest for ids in [0, vocabulary). A sequence of the index holds at most 2^31 - 1 tokens; a
  // longer document becomes several sequences.
  TokenWriter(std::string prefix, int64_t vocabulary, int64_t most_sequence_tokens = INT32_MAX);

  // Errors: an id outside the vocabulary; a disk that is full.
  void append(std::span<const int32_t> ids);
  // Ends the document of the tokens appended since the last end; without tokens it is an empty document.
  void end_document();

  // Writes and syncs all that is left, so that only names are missing. The last document must have ended. What the
  // notes say of tokens and documents is filled in.
  void prepare(std::optional<TokenNotes> notes = std::nullopt);
  // An older pair is no longer read: its index goes. Before a tokenizer is replaced that it needs.
  void withdraw_older() const;
  // Renames what is prepared, in place of an older pair and its notes: the notes first, the index last.
  void commit();
  void finish() {
    prepare();
    commit();
  }

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }

 private:
  // Gathers writes, which are short where documents are.
  struct File {
    io::AtomicFile file;
    std::string waiting = {};
    void write(const void* bytes, size_t count_bytes);
    void flush();
  };

  void end_sequence();
  void write_tail();

  std::string prefix_;
  int64_t vocabulary_;
  int64_t most_sequence_tokens_;
  TokenType type_;
  File tokens_file_;
  File index_file_;
  std::optional<io::AtomicFile> notes_file_;
  std::vector<char> packed_;         // ids in their stored type, on their way out
  std::vector<int64_t> continuing_;  // sequences that continue the document of the one before
  int64_t sequence_tokens_ = 0;      // in the open sequence
  bool in_document_ = false;
  bool splits_ = false;  // the open sequence continues a document
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
  int64_t tokens_ = 0;
  bool prepared_ = false;
};

}  // namespace keel::data
