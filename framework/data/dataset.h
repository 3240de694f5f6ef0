// Token files with weights, as the batches a model trains on.
//
// Row b of a batch is one sample: tokens[b][t] = token i*T + t of the source, targets[b][t] = the token after it. A
// target of -1 is not counted in the loss. positions[b][t], asked for with the document mask, restart at 0 where a
// document begins (and at the row's beginning), so that key j is in query t's document if and only if
// j >= t - positions[b][t]. With the mask on, the last token of a document (its end-of-document token, by our
// convention) does not predict the first of the next one: that target is -1. Empty documents change nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "framework/data/sampler.h"
#include "framework/data/token_file.h"

namespace keel::data {

struct Source {
  std::string path;
  double weight = 1;
};

struct DatasetOptions {
  int64_t T = 0;               // tokens of a row
  int64_t vocabulary = 0;      // real ids, without padding
  bool document_mask = false;  // documents begin where the index of the pair says so
};

// Memory of the caller's, each [B][T]; `positions` is empty where the mask is off.
struct BatchView {
  std::span<int32_t> tokens;
  std::span<int32_t> targets;
  std::span<int32_t> positions;
};

class Dataset {
 public:
  // Errors: those of TokenFile; no source; notes whose vocabulary is larger than the model's; a mask over a file
  // without an index.
  Dataset(std::vector<Source> sources, DatasetOptions options);

  // Errors: a source too short for one sample.
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

  // What the order of samples depends on, a line per source: sizes, types, weights, a hash of some of the content, T
  // and the seed. Not the paths: files may move. A checkpoint stores the text.
  std::string fingerprint_text(uint64_t seed) const;

  const std::vector<TokenFile>& files() const { return files_; }
  const DatasetOptions& options() const { return options_; }

 private:
  int64_t fill_row(const SampleId& row, const BatchView& out) const;
  int64_t mask_documents(const TokenFile& file, int64_t first, const BatchView& out) const;
  void check_ids(const TokenFile& file, int64_t first, const BatchView& out) const;

  std::vector<Source> sources_;
  DatasetOptions options_;
  std::vector<TokenFile> files_;
};

// Errors: texts that differ, naming the first line that does, as it was and as it is.
void check_fingerprint(const std::string& stored, const std::string& now);

}  // namespace keel::data
