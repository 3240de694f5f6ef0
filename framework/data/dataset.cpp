#include "framework/data/dataset.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "framework/base/error.h"
#include "framework/base/rng.h"

namespace keel::data {
namespace {

int64_t samples_of(const SampleSet& set) {
  return std::accumulate(set.samples.begin(), set.samples.end(), int64_t(0));
}

}  // namespace

Dataset::Dataset(std::vector<Source> sources, DatasetOptions options)
    : sources_(std::move(sources)), options_(options) {
  require(options_.T > 0 && options_.vocabulary > 0, "a dataset of {} tokens a row and {} ids", options_.T,
          options_.vocabulary);
  if (sources_.empty()) throw input_error("no data source is given");
  for (const Source& source : sources_) {
    require(source.weight.has_value() == sources_[0].weight.has_value(), "some sources have weights, others have none");
    if (source.weight || sets_.empty()) sets_.push_back({{}, source.weight.value_or(1)});
    const std::vector<std::string> paths = matching_files(source.path);
    if (paths.empty()) throw input_error("{}: no token file (.bin or .npy) matches this pattern", source.path);
    for (const std::string& path : paths) add_file(path, source);
    files_of_source_.push_back(paths.size());
  }
}

void Dataset::add_file(const std::string& path, const Source& source) {
  const TokenFile& file = files_.emplace_back(path, source.type);
  document_ends_.push_back(file.knows_documents() ? std::nullopt : source.document_end);
  file.check_vocabulary(options_.vocabulary);
  if (file.notes()) {
    check_same_tokenizer(*first_notes(false), *file.notes());
    if (const TokenNotes* known = first_notes(true)) check_same_tokenizer(*known, *file.notes());
  }
  if (options_.document_mask && !file.knows_documents() && !source.document_end)
    throw input_error(
        "{}: data.document_mask keeps documents apart, and only the .idx of a pair says where they begin: make the "
        "pair with keel tokenize, name the id that ends each by document_end beside the path, or set "
        "data.document_mask to false",
        file.path());
  sets_.back().samples.push_back(whole_samples(file.tokens(), options_.T));
}

const TokenNotes* Dataset::first_notes(bool with_crc32c) const {
  for (const TokenFile& file : files_)
    if (file.notes() && (!with_crc32c || file.notes()->model_crc32c)) return &*file.notes();
  return nullptr;
}

const TokenNotes* Dataset::notes() const {
  const TokenNotes* known = first_notes(true);
  return known ? known : first_notes(false);
}

SampleOrder Dataset::training_order(uint64_t seed) const {
  size_t first = 0;
  for (const SampleSet& set : sets_) {
    if (samples_of(set) == 0)
      throw input_error("{}: {} tokens make no sample; {} are needed, the sequence length {} and one target more",
                        files_[first].path(), files_[first].tokens(), options_.T + 1, options_.T);
    first += set.samples.size();
  }
  return {seed, sets_};
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
  for (const SampleSet& set : sets_) held += samples_of(set);
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
  return options_.document_mask ? mask_documents(size_t(row.source), first, real) : targets;
}

void Dataset::check_ids(const TokenFile& file, int64_t first, const BatchView& out) const {
  const auto limit = uint32_t(std::min(options_.vocabulary, int64_t(1) << 31));
  auto outside = [=](int32_t id) { return uint32_t(id) >= limit; };
  const auto token = std::find_if(out.tokens.begin(), out.tokens.end(), outside);
  if (token != out.tokens.end()) throw file.id_error(first + (token - out.tokens.begin()), options_.vocabulary);
  if (outside(out.targets.back())) throw file.id_error(first + int64_t(out.targets.size()), options_.vocabulary);
}

int64_t Dataset::mask_documents(size_t source, int64_t first, const BatchView& out) const {
  const TokenFile& file = files_[source];
  const auto& end = document_ends_[source];
  const auto here = int64_t(out.tokens.size()), targets = int64_t(out.targets.size());
  int64_t next_start = end ? 0 : file.document_start(file.document_of(first) + 1), position = 0, counted = 0;
  for (int64_t t = 0; t <= targets; ++t) {
    const bool at_boundary = end ? t > 0 && out.tokens[size_t(t - 1)] == *end : first + t == next_start;
    if (at_boundary && !end) next_start = file.document_start(file.document_of(next_start) + 1);
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
  const Interleaving interleaving(weights_of(sets_));
  std::string text = fmt::format("sequence length: {}\nseed: {}\nsources: {}\n", options_.T, seed, files_.size());
  const bool alone = sets_.size() == files_.size();
  for (size_t set = 0, f = 0; set < sets_.size(); ++set)
    for (const size_t end = f + sets_[set].samples.size(); f < end; ++f)
      text += fmt::format("source {}: {} tokens, {}, weight {}/{}{}, content {:016x}\n", f, files_[f].tokens(),
                          name_of(files_[f].type()), interleaving.share(int(set)), interleaving.period(),
                          alone ? "" : fmt::format(" of set {}", set), files_[f].content_hash());
  return text;
}

std::vector<std::string> Dataset::source_lines() const {
  const Interleaving interleaving(weights_of(sets_));
  std::vector<std::string> lines;
  for (size_t s = 0, f = 0; s < sources_.size(); ++s) {
    const size_t set = sources_[s].weight ? s : 0;
    const auto& of_set = sets_[set].samples;
    const auto first = of_set.begin() + ptrdiff_t(sources_[s].weight ? 0 : f);
    const int64_t samples = std::accumulate(first, first + ptrdiff_t(files_of_source_[s]), int64_t(0));
    const double share = double(interleaving.share(int(set))) / double(interleaving.period()) * double(samples) /
                         double(std::max<int64_t>(1, samples_of(sets_[set])));
    lines.push_back(fmt::format("{}: {} samples of {} tokens, {:.3g}% of those that training takes", sources_[s].path,
                                samples, options_.T, 100 * share));
    f += files_of_source_[s];
  }
  return lines;
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
