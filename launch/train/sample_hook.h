// Writes on from the prompts of `eval.prompts` after every evaluation: a line of the log and of samples.jsonl each.
#pragma once

#include "framework/io/jsonl.h"
#include "framework/train/evaluation_hook.h"
#include "launch/common/sampling.h"

namespace keel {

class SampleHook : public train::Hook {
 public:
  struct Options {
    std::vector<std::string> prompts;
    int64_t tokens = 0;
    uint64_t seed = 1;
    std::string path;      // of samples.jsonl
    bool speaker = false;  // writes it
  };
  // `evaluation` is asked before this, and outlives it, as what `writer` names.
  SampleHook(const train::EvaluationHook& evaluation, const Writer& writer, Options options)
      : evaluation_(evaluation), writer_(writer), options_(std::move(options)) {}

  void start(const train::Progress& progress) override;
  train::Verdict after_step(const train::StepReport& report, const train::Verdict&, const train::Progress&) override;

 private:
  const train::EvaluationHook& evaluation_;
  Writer writer_;
  Options options_;
  std::optional<io::JsonLinesWriter> file_;
};

}  // namespace keel
