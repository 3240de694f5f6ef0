// Token files with weights, as the batches a model trains on.
//
// Row b of a batch is one sample: tokens[b][t] = token i*T + t of the source, targets[b][t] = the token after it. A
// target of -1 is not counted in the loss. positions[b][t], asked for with the document mask, restart at 0 where a
// document begins (and at the row's beginning), so that key j is in query t's document if and only if
// j >= t - positions[b][t]. With the mask on, the last token of a document (its end-of-document token, by our
// convention) does not predict the first of the next one: that target is -1. Empty documents change nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/data/sampler.h"
#include "framework/data/token_file.h"

namespace keel::data {

struct Source {
  std::string path;  // of one file, or a pattern for several (matching_files): a set of samples
  // Of all its files together. Sources without weights are one set; either all have one or none.
  std::optional<double> weight = {};
  std::optional<TokenType> type = {};        // of ids without a header
  std::optional<int32_t> document_end = {};  // the id that ends a document, where no index says where they begin
};

struct DatasetOptions {
  int64_t T = 0;               // tokens of a row
  int64_t vocabulary = 0;      // real ids, without padding
  bool document_mask = false;  // documents begin where the index of the pair says so, or behind Source::document_end
};

// Memory of the caller's, each [B][T]; `positions` is empty where the mask is off.
struct BatchView {
  std::span<int32_t> tokens;
  std::span<int32_t> targets;
  std::span<int32_t> positions;
};

class Dataset {
 public:
  // Errors: those of TokenFile; no source; a pattern without a match; notes whose vocabulary is larger than the
  // model's, or that speak of different tokenizers; a mask over a file without an index.
  Dataset(std::vector<Source> sources, DatasetOptions options);

  // Errors: a set too short for one sample.
  SampleOrder training_order(uint64_t seed) const;
  // Errors: sources that are all too short for one target.
  ValidationOrder validation_order() const;
  // Errors: a training set smaller than one batch of so many samples, over all ranks. A batch may span two epochs.
  void check_batch(int64_t samples) const;

  // Fills rows.size() rows; a row whose source is -1, and what lies past a source's end, has tokens 0 and targets -1.
  // Returns the number of counted targets. Errors: an id outside the vocabulary, with file, document and offset.
  // Allocates nothing.
  int64_t fill(std::span<const SampleId> rows, const BatchView& batch) const;

  // Scans every id of every source (TokenFile::verify_ids).
  void verify_ids(int part = 0, int parts = 1) const;

  // What the order of samples depends on, a line per file: sizes, types, sets and their weights, a hash of some of the
  // content, T and the seed. Not the paths: files may move. A checkpoint stores the text.
  std::string fingerprint_text(uint64_t seed) const;
  // For people, a line per source: how many samples it has, and its share of those that training takes.
  std::vector<std::string> source_lines() const;
  // Of the tokenizer that made the files, where one of them has notes; those of the first that says its CRC32C, if any.
  const TokenNotes* notes() const;

  const std::vector<TokenFile>& files() const { return files_; }
  const DatasetOptions& options() const { return options_; }

 private:
  void add_file(const std::string& path, const Source& source);
  const TokenNotes* first_notes(bool with_crc32c) const;
  int64_t fill_row(const SampleId& row, const BatchView& out) const;
  int64_t mask_documents(size_t source, int64_t first, const BatchView& out) const;
  void check_ids(const TokenFile& file, int64_t first, const BatchView& out) const;

  std::vector<Source> sources_;
  std::vector<size_t> files_of_source_;  // how many
  DatasetOptions options_;
  std::vector<TokenFile> files_;
  std::vector<std::optional<int32_t>> document_ends_;  // of each file that does not know its documents
  std::vector<SampleSet> sets_;                        // of the files, in order
};

// Errors: texts that differ, naming the first line that does, as it was and as it is.
void check_fingerprint(const std::string& stored, const std::string& now);

}  // namespace keel::data
