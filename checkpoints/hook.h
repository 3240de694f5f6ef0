// Saves during a run, and keeps the last N.
//
// A save runs on a thread of its own, with communicators of its own, one at a time. In the background it copies the
// state while the next step's passes run, which only read it, and writes the copy; training waits for the copy alone,
// before the update. The outcome is looked at after each step.
#pragma once

#include <chrono>
#include <future>
#include <optional>

#include "checkpoints/format.h"
#include "checkpoints/options.h"

namespace keel::checkpoints {

// The largest copy of the state that a run may make. What lies on a GPU is always copied, and a run that is stopped
// early saves everything.
enum class Copies { none, weights, everything };
Copies largest_copy(const CheckpointOptions& options, DeviceKind device);

class CheckpointHook : public train::Hook {
 public:
  CheckpointHook(CheckpointParts parts, CheckpointOptions options)
      : parts_(std::move(parts)), options_(std::move(options)) {}

  // The run went on from its own file of that step: it need not be saved again.
  void saved_already(int64_t step) { saved_step_ = whole_step_ = step; }
  // While an error passes: where a save does not come to its end soon, because its threads wait for a rank that is
  // gone, all ranks end with that error. Unwinding would wait for them.
  void leave(const Error& error);

  // Where saves will be copied, the memory of the largest is taken now: a machine that lacks it says so before the
  // first step.
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
  using Copying = std::optional<std::promise<void>>;  // its end is the copy's; none where nothing is copied
  Saved save(const LocalTensors& tensors, const RunState& state, Copying copying);
  void copy(const LocalTensors& tensors, int64_t step, Copying copying);
  void wait_for_save(std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max());
  Saved save_in_steps(LocalTensors tensors, const RunState& state, Copying copying);
  void collect();
  void note_failure(const Error& error);

  CheckpointParts parts_;
  CheckpointOptions options_;
  int64_t saved_step_ = -1;
  int64_t whole_step_ = -1;  // of the newest file of this run that holds more than weights
  bool due_ = false;
  Snapshot snapshot_;
  std::future<void> copied_;    // the state, by the save that is under way; invalid: nothing has to wait for it
  double stalled_seconds_ = 0;  // of training, by the save that is under way
  int64_t failed_in_a_row_ = 0;
  std::future<Saved> saving_;  // the last member: it ends first
};

}  // namespace keel::checkpoints
