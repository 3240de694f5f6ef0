#include "framework/data/dataset.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "framework/base/error.h"
#include "framework/base/rng.h"

namespace keel::data {

Dataset::Dataset(std::vector<Source> sources, DatasetOptions options)
    : sources_(std::move(sources)), options_(options) {
  require(options_.T > 0 && options_.vocabulary > 0, "a dataset of {} tokens a row and {} ids", options_.T,
          options_.vocabulary);
  if (sources_.empty()) throw input_error("no data source is given");
  for (const Source& source : sources_) {
    files_.emplace_back(source.path);
    files_.back().check_vocabulary(options_.vocabulary);
    if (options_.document_mask && !files_.back().knows_documents())
      throw input_error(
          "{}: data.document_mask keeps documents apart, and only the .idx of a pair says where they begin: make the "
          "pair with keel tokenize, or set data.document_mask to false",
          files_.back().path());
  }
}

SampleOrder Dataset::training_order(uint64_t seed) const {
  std::vector<int64_t> samples;
  std::vector<double> weights;
  for (size_t s = 0; s < files_.size(); ++s) {
    samples.push_back(whole_samples(files_[s].tokens(), options_.T));
    weights.push_back(sources_[s].weight);
    if (samples.back() == 0)
      throw input_error("{}: {} tokens make no sample; {} are needed, the sequence length {} and one target more",
                        files_[s].path(), files_[s].tokens(), options_.T + 1, options_.T);
  }
  return {seed, std::move(samples), weights};
}

ValidationOrder Dataset::validation_order() const {
  std::vector<int64_t> tokens;
  for (const TokenFile& file : files_) tokens.push_back(file.tokens());
  ValidationOrder order(tokens, options_.T);
  if (order.samples() == 0)
    throw input_error("{}: {} tokens are too few to validate on", files_[0].path(), files_[0].tokens());
  return order;
}

void Dataset::check_batch(int64_t samples) const {
  int64_t held = 0;
  for (const TokenFile& file : files_) held += whole_samples(file.tokens(), options_.T);
  if (held < samples)
    throw input_error(
        "the training data hold {} samples of {} tokens, fewer than one global batch of {}; use a smaller batch, a "
        "shorter sequence or more text",
        held, options_.T, samples);
}

int64_t Dataset::fill(std::span<const SampleId> rows, const BatchView& batch) const {
  const size_t T = size_t(options_.T), elements = rows.size() * T;
  require(batch.tokens.size() == elements && batch.targets.size() == elements &&
              batch.positions.size() == (options_.document_mask ? elements : 0),
          "a batch of {} rows of {} needs {} elements, not {}, {} and {} (positions)", rows.size(), T, elements,
          batch.tokens.size(), batch.targets.size(), batch.positions.size());
  int64_t counted = 0;
  for (size_t b = 0; b < rows.size(); ++b) {
    BatchView row{batch.tokens.subspan(b * T, T), batch.targets.subspan(b * T, T), {}};
    if (options_.document_mask) row.positions = batch.positions.subspan(b * T, T);
    counted += fill_row(rows[b], row);
  }
  return counted;
}

int64_t Dataset::fill_row(const SampleId& row, const BatchView& out) const {
  std::fill(out.targets.begin(), out.targets.end(), -1);
  std::iota(out.positions.begin(), out.positions.end(), 0);
  if (row.source < 0) {
    std::fill(out.tokens.begin(), out.tokens.end(), 0);
    return 0;
  }
  const TokenFile& file = files_[size_t(row.source)];
  const int64_t first = row.sample * options_.T, here = std::min(options_.T, file.tokens() - first),
                targets = std::min(options_.T, file.tokens() - first - 1);
  require(row.sample >= 0 && targets > 0, "{}: there is no sample {} of {} tokens in {}", file.path(), row.sample,
          options_.T, file.tokens());
  file.read(first, out.tokens.first(size_t(here)));
  file.read(first + 1, out.targets.first(size_t(targets)));
  std::fill(out.tokens.begin() + here, out.tokens.end(), 0);
  const BatchView real{out.tokens.first(size_t(here)), out.targets.first(size_t(targets)),
                       options_.document_mask ? out.positions.first(size_t(here)) : out.positions};
  check_ids(file, first, real);
  return options_.document_mask ? mask_documents(file, first, real) : targets;
}

void Dataset::check_ids(const TokenFile& file, int64_t first, const BatchView& out) const {
  const auto limit = uint32_t(std::min(options_.vocabulary, int64_t(1) << 31));
  auto outside = [=](int32_t id) { return uint32_t(id) >= limit; };
  const auto token = std::find_if(out.tokens.begin(), out.tokens.end(), outside);
  if (token != out.tokens.end()) throw file.id_error(first + (token - out.tokens.begin()), options_.vocabulary);
  if (outside(out.targets.back())) throw file.id_error(first + int64_t(out.targets.size()), options_.vocabulary);
}

int64_t Dataset::mask_documents(const TokenFile& file, int64_t first, const BatchView& out) const {
  const auto here = int64_t(out.tokens.size()), targets = int64_t(out.targets.size());
  int64_t next_start = file.document_start(file.document_of(first) + 1), position = 0, counted = 0;
  for (int64_t t = 0; t <= targets; ++t) {
    const bool at_boundary = first + t == next_start;
    if (at_boundary) next_start = file.document_start(file.document_of(next_start) + 1);
    const bool begins = t > 0 && at_boundary;
    position = begins ? 0 : position;
    if (t < here) out.positions[size_t(t)] = int32_t(position++);
    if (t > 0 && begins) out.targets[size_t(t - 1)] = -1;
    if (t > 0 && !begins) ++counted;
  }
  return counted;
}

void Dataset::verify_ids(int part, int parts) const {
  for (const TokenFile& file : files_) file.verify_ids(options_.vocabulary, part, parts);
}

std::string Dataset::fingerprint_text(uint64_t seed) const {
  std::vector<double> weights;
  for (const Source& source : sources_) weights.push_back(source.weight);
  const Interleaving interleaving(weights);
  std::string text = fmt::format("sequence length: {}\nseed: {}\nsources: {}\n", options_.T, seed, files_.size());
  for (size_t s = 0; s < files_.size(); ++s)
    text += fmt::format("source {}: {} tokens, {}, weight {}/{}, content {:016x}\n", s, files_[s].tokens(),
                        name_of(files_[s].type()), interleaving.share(int(s)), interleaving.period(),
                        files_[s].content_hash());
  return text;
}

void check_fingerprint(const std::string& stored, const std::string& now) {
  std::istringstream stored_lines(stored), lines(now);
  std::string was, is;
  while (true) {
    const bool more_was = bool(std::getline(stored_lines, was)), more_is = bool(std::getline(lines, is));
    if (!more_was && !more_is) return;
    if (was != is || more_was != more_is)
      throw input_error(
          "the training data are not those of the checkpoint: it has '{}', the run '{}'; to resume, give "
          "it the same files, weights, sequence length and seed",
          more_was ? was : "", more_is ? is : "");
  }
}

}  // namespace keel::data
