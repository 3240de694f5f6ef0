// Which file a run goes on from, and how it is brought back.
#pragma once

#include <optional>

#include "checkpoints/options.h"
#include "checkpoints/reader.h"
#include "checkpoints/recovery.h"

namespace keel::checkpoints {

// The stored states of hooks by name. An input error where they are nothing that this program wrote.
nlohmann::json hooks_of(const RunState& state, const std::string& path);

class Resume {
 public:
  Resume(CheckpointParts parts, CheckpointOptions options) : parts_(std::move(parts)), options_(std::move(options)) {}

  // The file to go on from: `resume` is "auto", "none" or a path. "none" in a directory that holds checkpoints is
  // refused. A path outside it is where the run begins: once it has checkpoints of its own, the newest of those is
  // meant, so that the same command goes on. A path inside it is gone back to, unless the newest was saved by a run
  // that had gone back to it. Collective.
  std::optional<std::string> find(const std::string& resume);
  // The same after a rollback: one of its files, else where the run began.
  std::optional<std::string> find(const Rollback& rollback, const std::string& resume);
  struct Loaded {
    bool own = false;  // a file of this run
    Comparison since;  // the file was written
  };
  // Weights, moments, progress and the other hooks' states; the probe that is stored with them must give its loss
  // again. Collective.
  Loaded load(const std::string& path);

 private:
  // Whether the file lies in this run's own directory, as rank 0 sees it. Collective.
  bool is_own(const std::string& path) const;
  // Whether it is the last of them, where there are any. Collective.
  bool is_newest(const std::string& path) const;
  // Whether the run that saved this file had been told to go on from `resume`. Collective.
  bool went_on_from(const std::string& resume, const std::string& path) const;
  void check_probe(const train::Probe& stored, double tolerance, const std::string& path);

  CheckpointParts parts_;
  CheckpointOptions options_;
};

}  // namespace keel::checkpoints
