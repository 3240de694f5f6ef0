#include "framework/data/corpus.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "framework/base/error.h"
#include "framework/base/rng.h"
#include "framework/base/utf8.h"
#include "framework/data/notes.h"
#include "framework/data/token_writer.h"
#include "framework/data/tokenizer.h"
#include "framework/io/crc32c.h"
#include "framework/io/files.h"

namespace keel::data {
namespace {

namespace fs = std::filesystem;
using Progress = std::function<void(const CorpusProgress&)>;

// Text that is encoded together, by all threads: as much as one of the two allows.
constexpr int64_t kMostBatch_bytes = 8 << 20;
constexpr size_t kMostBatchPieces = 1 << 16;

constexpr double kTraining_bytes = 16 << 20;  // of text that a model is trained on

constexpr uint64_t kLargestModel_bytes = uint64_t(1) << 28;

bool same_file(const std::string& a, const std::string& b) {
  std::error_code absent;
  return fs::equivalent(a, b, absent);
}

// Where the tokenizer's file goes; "" where there is none.
std::string model_output(const CorpusOptions& options) {
  if (options.model.ends_with(".json")) return options.prefix + ".tokenizer.json";
  return options.sentencepiece == 0 && options.model.empty() ? "" : options.prefix + ".model";
}

std::vector<std::string> prefixes_of(const CorpusOptions& options) {
  std::vector<std::string> prefixes = {options.prefix};
  if (options.valid > 0) prefixes.push_back(options.prefix + "-valid");
  return prefixes;
}

// No output replaces what is read.
void check_inputs_stay(const CorpusOptions& options) {
  const std::string model = model_output(options);
  std::vector<std::string> outputs;
  for (const std::string& prefix : prefixes_of(options))
    for (const char* ending : {".bin", ".idx", ".json"}) outputs.push_back(prefix + ending);
  for (const std::string& output : outputs)
    if (!options.model.empty() && same_file(output, options.model))
      throw input_error("{}: the tokens' {} would replace this tokenizer; choose another --out", options.model, output);
  if (!model.empty()) outputs.push_back(model);
  for (const std::string& output : outputs)
    for (const std::string& text : options.texts)
      if (same_file(output, text == "-" ? "/dev/stdin" : text))
        throw input_error("{}: {} would replace this text; choose another --out", text, output);
}

// Nor anything that `keel tokenize` did not make.
void check_others_stay(const CorpusOptions& options) {
  const auto has_notes = [](const std::string& prefix) {
    try {
      return read_notes(prefix).has_value();
    } catch (const Error&) {
      return false;
    }
  };
  for (const std::string& prefix : prefixes_of(options)) {
    if (has_notes(prefix)) continue;
    if (fs::exists(prefix + ".json"))
      throw input_error(
          "{}.json: is there, and no notes of `keel tokenize`, which would replace it; choose another --out", prefix);
    for (const char* ending : {".bin", ".idx"})
      if (fs::exists(prefix + ending))
        throw input_error(
            "{}{}: is there, and without {}.json it is not of `keel tokenize`, which would replace it; choose another "
            "--out",
            prefix, ending, prefix);
  }
  const std::string model = model_output(options);
  if (!model.empty() && fs::exists(model) && !same_file(model, options.model) && !has_notes(options.prefix))
    throw input_error(
        "{}: is there, and without {}.json it is no tokenizer of `keel tokenize`, which would replace it; "
        "choose another --out",
        model, options.prefix);
}

void check_options(const CorpusOptions& options) {
  if (options.texts.empty()) throw input_error("no text is given");
  if (options.prefix.empty() || options.prefix.ends_with('/'))
    throw input_error("'{}' is no prefix for the files to write, such as data/corpus", options.prefix);
  if (!(options.valid >= 0 && options.valid <= 0.5))
    throw input_error("the share of held-out text is {}; it must be from 0 to 0.5", options.valid);
  if (options.sentencepiece != 0 && !options.model.empty())
    throw input_error("either train a SentencePiece model or give one ({}), not both", options.model);
  const auto piped = [](const std::string& path) { return path == "-" || !fs::is_regular_file(path); };
  const auto pipe = std::find_if(options.texts.begin(), options.texts.end(), piped);
  if (options.sentencepiece != 0 && pipe != options.texts.end() && !fs::is_directory(*pipe) &&
      (*pipe == "-" || fs::exists(*pipe)))
    throw input_error(
        "training SentencePiece reads the text twice, and '{}' can be read once; write it to a file, or "
        "give a model",
        *pipe);
  if (options.json_key != CorpusOptions().json_key && options.documents != DocumentRule::jsonl)
    throw input_error("--json-key {} names a key of JSON Lines; give --documents jsonl as well", options.json_key);
  check_inputs_stay(options);
  check_others_stay(options);
}

// The length of pieces: held-out text comes from some 32 places or more.
size_t piece_bytes_of(const CorpusOptions& options) {
  if (options.valid == 0) return 1 << 20;
  const int64_t total = DocumentReader(options.texts, options.documents, 4).total_bytes();
  if (total == 0) return 16 << 10;
  return size_t(std::clamp(double(total) * options.valid / 32, 1024.0, 65536.0));
}

// The pieces in order, each with whether it is held out.
class Pieces {
 public:
  explicit Pieces(const CorpusOptions& options)
      : reader_(options.texts, options.documents, piece_bytes_of(options), options.json_key),
        held_out_(options.valid) {}

  bool next(TextPiece& piece, bool& held_out) {
    if (!reader_.next(piece)) return false;
    held_out = !piece.text.empty() && held_out_(count_++);
    begins_ = ended_ || held_out;
    ended_ = held_out || piece.ends_document;
    return true;
  }
  // Whether the last one begins a document of the token files.
  bool begins() const { return begins_; }
  const DocumentReader& reader() const { return reader_; }

 private:
  DocumentReader reader_;
  HeldOut held_out_;
  int64_t count_ = 0;
  bool begins_ = true, ended_ = true;
};

// Text to train a model on: pieces from all over, never the held-out ones.
std::vector<std::string> sample_of(const CorpusOptions& options, const Progress& progress) {
  Pieces pieces(options);
  const double total = double(pieces.reader().total_bytes());
  const double share = std::min(1.0, kTraining_bytes / std::max(1.0, total));
  std::vector<std::string> texts;
  TextPiece piece;
  bool held_out = false;
  double seen = 0, kept = 0;
  while (pieces.next(piece, held_out)) {
    progress({"reading", pieces.reader().bytes(), pieces.reader().total_bytes()});
    seen += double(piece.text.size());
    if (held_out || kept + double(piece.text.size()) > seen * share) continue;
    kept += double(piece.text.size());
    texts.push_back(piece.text);
  }
  if (texts.empty()) throw input_error("{}: too little text to train SentencePiece on", options.texts[0]);
  return texts;
}

// PREFIX.model (or PREFIX.tokenizer.json) under a temporary name, so that older tokens keep their model until the new
// ones are complete.
class ModelFile {
 public:
  explicit ModelFile(const CorpusOptions& options) : path_(model_output(options)) {}

  // `end_of_document`: of a tokenizer.json, which does not say it itself.
  std::unique_ptr<Tokenizer> load(const std::string& model, std::optional<int32_t> end_of_document) {
    crc32c_ = io::crc32c(std::as_bytes(std::span(model)));
    file_.emplace(path_);
    file_->write(model);
    file_->sync();
    const std::string& name = file_->temporary_path();
    return path_.ends_with(".json") ? byte_level_tokenizer(name, end_of_document) : sentencepiece_tokenizer(name);
  }
  void describe(TokenNotes& notes) const {
    if (!file_) return;
    notes.model = fs::path(path_).filename().string();
    notes.model_crc32c = crc32c_;
  }
  void commit() {
    if (file_) file_->commit();
  }

 private:
  std::string path_;
  std::optional<io::AtomicFile> file_;
  int64_t crc32c_ = 0;
};

std::unique_ptr<Tokenizer> make_tokenizer(const CorpusOptions& options, ModelFile& file, const Progress& progress) {
  if (options.sentencepiece == 0 && options.model.empty()) return byte_tokenizer();
  if (options.sentencepiece == 0) {
    const auto named = tokenizer_at(options.model);  // so that an error names the file given
    return file.load(io::read_file(options.model, kLargestModel_bytes), named->end_of_document());
  }
  const auto texts = sample_of(options, progress);
  progress({"training SentencePiece", 0, 0});
  return file.load(train_sentencepiece(texts, options.sentencepiece), std::nullopt);
}

// One pair and its notes.
class Output {
 public:
  Output(const std::string& prefix, const Tokenizer& tokenizer)
      : end_(tokenizer.end_of_document()), writer_(prefix, tokenizer.vocabulary()) {
    tokenizer.begin_document(begin_);
  }

  void append(const std::vector<int32_t>& ids, size_t bytes) {
    if (!in_document_) writer_.append(begin_);
    writer_.append(ids);
    bytes_ += int64_t(bytes);
    in_document_ = true;
  }
  // Nothing where no document is open.
  void end_document() {
    if (!in_document_) return;
    writer_.append(std::span(&end_, 1));
    writer_.end_document();
    in_document_ = false;
  }
  void prepare(TokenNotes notes) {
    notes.bytes = bytes_;
    writer_.prepare(notes);
  }
  void withdraw_older() const { writer_.withdraw_older(); }
  void commit() { writer_.commit(); }
  CorpusReport report() const { return {writer_.tokens(), writer_.documents(), bytes_}; }

 private:
  std::vector<int32_t> begin_;
  int32_t end_;
  TokenWriter writer_;
  int64_t bytes_ = 0;
  bool in_document_ = false;
};

struct Unit {
  TextPiece piece;
  bool held_out = false, begins = true;
  std::vector<int32_t> ids;
  int64_t invalid_bytes = 0;
};

bool read_batch(Pieces& pieces, std::vector<Unit>& units) {
  units.clear();
  Unit unit;
  for (int64_t bytes = 0; bytes < kMostBatch_bytes && units.size() < kMostBatchPieces;) {
    if (!pieces.next(unit.piece, unit.held_out)) break;
    unit.begins = pieces.begins();
    bytes += int64_t(unit.piece.text.size());
    units.push_back(std::move(unit));
  }
  return !units.empty();
}

void encode_batch(const Tokenizer& tokenizer, std::vector<Unit>& units) {
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic, 1)
  for (size_t i = 0; i < units.size(); ++i) {
    try {
      units[i].invalid_bytes = count_invalid_bytes(units[i].piece.text);
      tokenizer.encode(units[i].piece.text, units[i].ids, units[i].begins);
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void write_unit(const Unit& unit, Output& training, std::optional<Output>& valid) {
  if (unit.held_out) {
    training.end_document();
    valid->append(unit.ids, unit.piece.text.size());
    valid->end_document();
    return;
  }
  if (!unit.piece.text.empty()) training.append(unit.ids, unit.piece.text.size());
  if (unit.piece.ends_document) training.end_document();
}

TokenNotes notes_on(const Tokenizer& tokenizer, const ModelFile& model) {
  TokenNotes notes;
  notes.tokenizer = tokenizer.kind();
  model.describe(notes);
  notes.vocabulary = tokenizer.vocabulary();
  notes.end_of_document = tokenizer.end_of_document();
  notes.start_of_text = tokenizer.start_of_text();
  return notes;
}

void check_written(const CorpusOptions& options, const CorpusReport& training, const std::optional<Output>& valid) {
  const int64_t valid_bytes = valid ? valid->report().bytes : 0;
  if (training.bytes + valid_bytes == 0) throw input_error("{}: no text to tokenize", options.texts[0]);
  if (training.bytes == 0 || (valid && valid_bytes == 0))
    throw input_error(
        "{}: holding out a share of {} of {} bytes leaves nothing to {} on; give more text, another share "
        "or shorter documents",
        options.texts[0], options.valid, training.bytes + valid_bytes, training.bytes == 0 ? "train" : "validate");
}

}  // namespace

bool HeldOut::operator()(int64_t piece) const {
  if (share_ <= 0) return false;
  // Stretch k holds the pieces from ceil(k / share) on; 1e-9 forgives what 1 / 0.01 lacks to 100.
  auto start_of = [&](int64_t stretch) { return int64_t(std::ceil(double(stretch) / share_ - 1e-9)); };
  auto stretch = int64_t(double(piece) * share_);
  while (start_of(stretch + 1) <= piece) ++stretch;
  while (start_of(stretch) > piece) --stretch;
  const int64_t start = start_of(stretch), length = start_of(stretch + 1) - start;
  return piece - start == int64_t(uniform(key_of(0, "held-out text"), uint64_t(stretch)) * double(length));
}

std::string unread_json(const CorpusOptions& options) {
  if (options.documents == DocumentRule::jsonl) return "";
  for (const std::string& path : options.texts) {
    if (!fs::is_regular_file(path)) continue;  // a pipe can be read once
    std::ifstream file(path, std::ios::binary);
    std::string line(1 << 20, '\0');
    file.read(line.data(), std::streamsize(line.size()));
    line.resize(size_t(file.gcount()));
    const auto object = nlohmann::json::parse(line.substr(0, line.find('\n')), nullptr, false);
    if (object.is_object() && object.contains(options.json_key)) return path;
  }
  return "";
}

CorpusReports make_corpus(CorpusOptions options, const Progress& progress) {
  if (!options.model.empty()) options.model = tokenizer_file(options.model);
  check_options(options);
  if (const fs::path folder = fs::path(options.prefix).parent_path(); !folder.empty())
    io::create_directories(folder.string());
  ModelFile model(options);
  const auto tokenizer = make_tokenizer(options, model, progress);
  Output training(options.prefix, *tokenizer);
  std::optional<Output> valid;
  if (options.valid > 0) valid.emplace(options.prefix + "-valid", *tokenizer);

  CorpusReports reports;
  Pieces pieces(options);
  std::vector<Unit> units;
  while (read_batch(pieces, units)) {
    encode_batch(*tokenizer, units);
    for (const Unit& unit : units) {
      write_unit(unit, training, valid);
      reports.invalid_bytes += unit.invalid_bytes;
    }
    progress({"encoding", pieces.reader().bytes(), pieces.reader().total_bytes()});
  }
  check_written(options, training.report(), valid);
  const TokenNotes notes = notes_on(*tokenizer, model);
  training.prepare(notes);
  if (valid) valid->prepare(notes);
  // All is on the disk, and only names change. Older tokens go first: nobody is to read them with the new model.
  training.withdraw_older();
  if (valid) valid->withdraw_older();
  model.commit();
  training.commit();
  if (valid) valid->commit();

  reports.training = training.report();
  if (valid) reports.valid = valid->report();
  reports.type = name_of(smallest_type(tokenizer->vocabulary()));
  reports.vocabulary = tokenizer->vocabulary();
  return reports;
}

}  // namespace keel::data
