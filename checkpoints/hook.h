// Saves during a run, and keeps the last N.
//
// A save runs on a thread of its own, with communicators of its own, one at a time. In the background it copies the
// state while the next step's passes run, which only read it, and writes the copy; training waits for the copy alone,
// before the update. The outcome is looked at after each step.
#pragma once

#include <chrono>
#include <future>

#include "checkpoints/format.h"
#include "checkpoints/options.h"

namespace keel::checkpoints {

class CheckpointHook : public train::Hook {
 public:
  CheckpointHook(CheckpointParts parts, CheckpointOptions options)
      : parts_(std::move(parts)), options_(std::move(options)) {}

  // The run went on from its own file of that step: it need not be saved again.
  void saved_already(int64_t step) { saved_step_ = step, saved_whole_ = true; }
  // While an error passes: where a save does not come to its end soon, because its threads wait for a rank that is
  // gone, all ranks end with that error. Unwinding would wait for them.
  void leave(const Error& error);

  // Where saves will be copied, their memory is taken now: a machine that lacks it says so before the first step.
  void start(const train::Progress& progress) override;
  void before_update() override;
  train::Verdict after_step(const train::StepReport& report, const train::Verdict& verdict,
                            const train::Progress& progress) override;
  void finish(const train::Progress& progress, const train::Ending& ending) override;

 private:
  // What a save that succeeded has to say.
  struct Saved {
    std::string path;
    int64_t step = 0, bytes = 0;
    double seconds = 0;
    bool whole = true;  // not weights alone
  };
  RunState state_at(const train::Progress& progress);
  void start_save(const train::Progress& progress, bool copied);
  Saved save(const LocalTensors& tensors, const RunState& state);
  void wait_for_save(std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max());
  Saved save_in_steps(const LocalTensors& tensors, const RunState& state);
  void collect();
  void note_failure(const Error& error);

  CheckpointParts parts_;
  CheckpointOptions options_;
  int64_t saved_step_ = -1;
  bool saved_whole_ = false;
  bool due_ = false;
  Snapshot snapshot_;
  std::future<void> copied_;    // the state, by the save that is under way; invalid: nothing has to wait for it
  double stalled_seconds_ = 0;  // of training, by the save that is under way
  int64_t failed_in_a_row_ = 0;
  std::future<Saved> saving_;  // the last member: it ends first
};

}  // namespace keel::checkpoints
