// Text files as documents, read in pieces of bounded size. Put together, the pieces are the files, byte for byte; of
// JSON Lines they are the texts.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace keel::data {

// Where documents end; a file always ends one.
enum class DocumentRule {
  file,   // nowhere else
  blank,  // after the blank lines that follow text
  line,   // after every newline
  jsonl,  // a line is a JSON object, which holds the text of a document
};

struct TextPiece {
  std::string text;  // may be empty where the document ended at the last cut
  bool ends_document = false;
};

class DocumentReader {
 public:
  // "-" is standard input. Documents longer than piece_bytes come in several pieces, cut at the end of a line where
  // there is one, else between characters. `json_key`: of the text, in JSON Lines. Errors: a file that cannot be opened
  // or read, or is compressed; a line that is no such object or longer than `longest_line_bytes`, with file and line.
  DocumentReader(std::vector<std::string> paths, DocumentRule rule, size_t piece_bytes, std::string json_key = "text",
                 size_t longest_line_bytes = size_t(1) << 30);

  // False after the last piece.
  bool next(TextPiece& piece);

  int64_t bytes() const { return bytes_; }  // read so far
  // Of all files together; 0 where standard input is among them.
  int64_t total_bytes() const { return total_bytes_; }

 private:
  // Sees the ends of documents; carries on from one piece to the next.
  struct Scanner {
    DocumentRule rule;
    bool line_is_blank = true;
    bool has_text = false;     // in this document
    bool after_blank = false;  // a blank line was last, with text before it
    // The end of the document within `text`, or npos.
    size_t find_end(std::string_view text);
  };

  void open_next();
  void refill(size_t bytes);
  void check_uncompressed() const;
  size_t end_of_line();
  bool next_line();
  bool next_of_json(TextPiece& piece);

  std::vector<std::string> paths_;
  size_t next_path_ = 0;
  size_t piece_bytes_;
  Scanner scanner_;
  std::string json_key_;
  size_t longest_line_bytes_;  // of JSON
  std::string document_;       // text of a line of JSON
  size_t document_begin_ = 0;  // of what is not yet handed out
  int64_t line_ = 0;           // of the file, from 1
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::string buffer_;
  size_t begin_ = 0;  // of what is not yet handed out
  bool file_ended_ = true;
  bool in_document_ = false;  // a piece without an end came last
  int64_t bytes_ = 0;
  int64_t total_bytes_ = 0;
};

}  // namespace keel::data
