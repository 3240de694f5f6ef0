// Text into token files: PREFIX.bin, .idx, .json, with SentencePiece PREFIX.model, with a given tokenizer.json
// PREFIX.tokenizer.json, and the held-out text PREFIX-valid.*.
//
// Every document begins with the tokenizer's start-of-text token, where it has one, and is followed by its
// end-of-document token. Held-out text is chosen piece by piece: a piece is a document, or a part of one that is longer
// than a 32nd of the held-out text (at most 64 KiB). Of every 1/valid consecutive pieces one is held out, at a place
// that depends only on its number, so that held-out text comes from all over and neither short nor long documents are
// preferred. A held-out part ends the training document before it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "framework/data/documents.h"

namespace keel::data {

// Which of the pieces of a text are held out: a share of them, one in every stretch of 1/share, by number.
class HeldOut {
 public:
  explicit HeldOut(double share) : share_(share) {}
  bool operator()(int64_t piece) const;

 private:
  double share_;
};

struct CorpusOptions {
  std::vector<std::string> texts;  // paths, "-" for standard input
  std::string prefix;
  DocumentRule documents = DocumentRule::file;
  double valid = 0;               // share to hold out, 0 to 0.5
  int64_t sentencepiece = 0;      // train a model of this many ids; 0: none
  std::string model = {};         // a given .model, tokenizer.json or folder with one; "": none. Then bytes
  std::string json_key = "text";  // of the text in JSON Lines
};

struct CorpusProgress {
  std::string what;         // "reading", "training", "encoding"
  int64_t bytes = 0;        // done
  int64_t total_bytes = 0;  // 0: unknown
};

struct CorpusReport {
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t bytes = 0;
};

struct CorpusReports {
  CorpusReport training;
  std::optional<CorpusReport> valid;
  std::string type;  // of the stored ids
  int64_t vocabulary = 0;
  int64_t invalid_bytes = 0;  // that are no UTF-8; kept as they are
};

// Errors: files that cannot be read or written, or would be lost; options that contradict each other; text too short to
// hold out from. After one, everything is as it was.
CorpusReports make_corpus(CorpusOptions options, const std::function<void(const CorpusProgress&)>& progress);
// The first text that looks like JSON Lines with the key, where they are not read as that; "" where none does.
std::string unread_json(const CorpusOptions& options);

}  // namespace keel::data
