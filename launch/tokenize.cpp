// keel tokenize TEXT... --out PREFIX
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "framework/base/clock.h"
#include "framework/base/error.h"
#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/data/corpus.h"
#include "launch/common/commands.h"

namespace keel {
namespace {

// One live line on a terminal, else a line every half minute.
class ProgressLine {
 public:
  ProgressLine() = default;
  ProgressLine(const ProgressLine&) = delete;
  ~ProgressLine() {
    if (live_) std::fputs("\r\033[K", stderr);
  }

  void show(const data::CorpusProgress& progress) {
    if (progress.what != what_) {
      what_ = progress.what;
      start_ = Clock::now();
      shown_ = start_ - std::chrono::hours(1);
      if (!live_) shown_ = start_;
    }
    if (seconds_since(shown_) < (live_ ? 0.2 : 30)) return;
    shown_ = Clock::now();
    if (live_)
      std::fputs(("\r\033[K" + line_of(progress)).c_str(), stderr);
    else
      log::info("{}", line_of(progress));
  }

 private:
  std::string line_of(const data::CorpusProgress& progress) const {
    const double seconds = seconds_since(start_), rate = double(progress.bytes) / std::max(seconds, 1e-3);
    if (progress.bytes == 0) return progress.what + " ...";
    std::string line = fmt::format("{} {}", progress.what, human_bytes(double(progress.bytes)));
    if (progress.total_bytes > 0) line += fmt::format(" of {}", human_bytes(double(progress.total_bytes)));
    line += fmt::format(", {}/s", human_bytes(rate));
    if (progress.total_bytes > 0)
      line += fmt::format(", {} left", human_seconds(double(progress.total_bytes - progress.bytes) / rate));
    return line;
  }

  const bool live_ = ::isatty(STDERR_FILENO) == 1;
  std::string what_;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

void tell(const std::string& prefix, const data::CorpusReport& report, const std::string& type) {
  log::info("{}: {} tokens ({}) in {} documents, {} bytes of text, {:.3f} bytes per token", prefix, report.tokens, type,
            report.documents, report.bytes, double(report.bytes) / double(report.tokens));
}

void run(const data::CorpusOptions& options) {
  const auto start = Clock::now();
  const auto reports = [&] {
    ProgressLine line;
    return data::make_corpus(options, [&](const data::CorpusProgress& progress) { line.show(progress); });
  }();
  tell(options.prefix, reports.training, reports.type);
  if (reports.valid) tell(options.prefix + "-valid", *reports.valid, reports.type);
  if (!reports.valid && std::filesystem::exists(options.prefix + "-valid.bin"))
    log::warning("{}-valid: held-out tokens of another text or tokenizer, and not made anew without --valid",
                 options.prefix);
  if (const std::string json = data::unread_json(options); !json.empty())
    log::warning("{}: looks like JSON Lines, read as plain text; --documents jsonl reads what is under '{}'", json,
                 options.json_key);
  if (reports.invalid_bytes > 0)
    log::warning("{} bytes of the text are not UTF-8; they are kept as they are", reports.invalid_bytes);
  const double seconds = seconds_since(start);
  const int64_t tokens = reports.training.tokens + (reports.valid ? reports.valid->tokens : 0);
  log::info("vocabulary {}, {} tokens/s, {}", reports.vocabulary, human_count(double(tokens) / seconds),
            human_seconds(seconds));
}

}  // namespace

void add_tokenize(CLI::App& program) {
  auto options = std::make_shared<data::CorpusOptions>();
  CLI::App* command = program.add_subcommand("tokenize", "Turn text into token files: PREFIX.bin, .idx and .json");
  command->add_option("text", options->texts, "Text files; - is standard input")->required();
  command->add_option("--out", options->prefix, "Prefix of the files to write, such as data/corpus")->required();
  command->add_option("--valid", options->valid,
                      "Share of the text to hold out into PREFIX-valid, from all over the text, such as 0.01");
  command->add_option("--sentencepiece", options->sentencepiece,
                      "Train a SentencePiece model with this many ids, PREFIX.model (default: 257 ids for bytes)");
  command->add_option("--model", options->model,
                      "Use this SentencePiece .model or tokenizer.json (byte-level BPE); it is copied beside PREFIX");
  const std::map<std::string, data::DocumentRule> rules = {{"file", data::DocumentRule::file},
                                                           {"blank", data::DocumentRule::blank},
                                                           {"line", data::DocumentRule::line},
                                                           {"jsonl", data::DocumentRule::jsonl}};
  command
      ->add_option(
          "--documents", options->documents,
          "What a document is: a file, text up to blank lines, a line, or the text in a line of JSON (default: file)")
      ->transform(CLI::CheckedTransformer(rules));
  command->add_option("--json-key", options->json_key, "Under which --documents jsonl finds the text")
      ->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace keel
