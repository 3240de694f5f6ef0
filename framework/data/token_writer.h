// Writes the pair PREFIX.bin and PREFIX.idx (token_format.h) as tokens come, in memory that does not grow with them.
// The files carry temporary names until finish(); without it they are removed.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "framework/data/token_file.h"

namespace keel::data {

class TokenWriter {
 public:
  // The type is the smallest for ids in [0, vocabulary). A sequence of the index holds at most 2^31 - 1 tokens; a
  // longer document becomes several sequences.
  TokenWriter(std::string prefix, int64_t vocabulary, int64_t most_sequence_tokens = INT32_MAX);
  TokenWriter(const TokenWriter&) = delete;
  ~TokenWriter();

  // Errors: an id outside the vocabulary; a disk that is full.
  void append(std::span<const int32_t> ids);
  // Ends the document of the tokens appended since the last end; without tokens it is an empty document.
  void end_document();
  // Flushes, syncs and renames both files, the index last, in place of older ones. The last document must have ended.
  void finish();

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }

 private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  void end_sequence();
  void write(const File& file, const void* bytes, size_t count_bytes) const;
  void write_tail();
  void close(File& file) const;

  std::string prefix_;
  int64_t vocabulary_;
  int64_t most_sequence_tokens_;
  TokenType type_;
  File tokens_file_;
  File index_file_;
  std::vector<char> packed_;         // ids in their stored type, on their way out
  std::vector<int64_t> continuing_;  // sequences that continue the document of the one before
  int64_t sequence_tokens_ = 0;      // in the open sequence
  bool in_document_ = false;
  bool splits_ = false;  // the open sequence continues a document
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
  int64_t tokens_ = 0;
  bool finished_ = false;
};

}  // namespace keel::data
