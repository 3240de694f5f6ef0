// Saves during a run, keeps the last N, and brings a run back.
//
// A save runs on a thread of its own, with communicators of its own, one at a time. In the background it writes a copy
// of the state, and training waits for the copy alone; its outcome is looked at after each step.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <optional>

#include "checkpoints/latest.h"
#include "checkpoints/reader.h"
#include "checkpoints/recovery.h"
#include "checkpoints/writer.h"
#include "framework/train/trainer.h"

namespace keel::checkpoints {

struct CheckpointOptions {
  std::string directory;  // of the checkpoints: runs/NAME/checkpoints
  int64_t every = 0;      // steps; 0 = only where the run ends
  Retention retention;    // of complete files of this run
  bool final = true;      // save where the run ends; one that is to go on is saved whatever this says
  bool background = true;
  int64_t max_failed = 3;                        // saves in a row; the last one's error then ends the run
  double time_limit_seconds = kIoLimit_seconds;  // of one step of a save or a load
  double final_save_limit_seconds = 600;         // of all that the end waits for
  bool weights_only = false;                     // but where a run is stopped early all is saved, for it to go on
  int64_t parts = 1;
  std::vector<std::pair<std::string, std::string>> mpi_hints;
  // Called before each save: for what must not be missing from a run that goes on from it.
  std::function<void()> before_save;
  // Texts that go into each file.
  std::string config, environment, data_fingerprint, qk_norm;
  // Of the loss of the stored probe, relative, given the config that it was computed with. None: 1e-4.
  std::function<double(const std::string& stored)> probe_tolerance = {};
  // Throws where a stored config must not be gone on with; otherwise says in lines what changed.
  std::function<std::vector<std::string>(const std::string& stored)> compare_configs;
  // What checkpoint.resume was in a stored config, in the same words as find() gets it. None: something else.
  std::function<std::string(const std::string& stored)> resume_of = {};
  // Says in lines what of the stored environment is another one now.
  std::function<std::vector<std::string>(const std::string& stored)> compare_environments = {};
  train::Note note = {};  // where events go
};

// What of a run goes into a checkpoint. Everything outlives the hook.
struct CheckpointParts {
  comm::Communicator& world;
  comm::Communicator& saves;  // all ranks, for the thread that saves alone
  MPI_Comm io_comm;           // all ranks, for the I/O thread alone
  io::IoThread& io;
  nn::Model& model;
  parallel::Mesh& mesh;
  train::Trainer& trainer;
  bool zero = true;
  train::Probe probe = {};  // stored with each save, its loss computed then; empty: none
};

class CheckpointHook : public train::Hook {
 public:
  CheckpointHook(CheckpointParts parts, CheckpointOptions options)
      : parts_(std::move(parts)), options_(std::move(options)) {}

  // The file to go on from: `resume` is "auto", "none" or a path. "none" in a directory that holds checkpoints is
  // refused. A path outside it is where the run begins: once it has checkpoints of its own, the newest of those is
  // meant, so that the same command goes on. A path inside it is gone back to, unless the newest was saved by a run
  // that had gone back to it. Collective.
  std::optional<std::string> find(const std::string& resume);
  // The same after a rollback: one of its files, else where the run began.
  std::optional<std::string> find(const Rollback& rollback, const std::string& resume);
  // What is not as it was when a checkpoint was written, in lines.
  struct Changes {
    std::vector<std::string> config, environment;
  };
  // Weights, moments, progress and the other hooks' states; the probe that is stored with them must give its loss
  // again. Collective.
  Changes load(const std::string& path);
  // While an error passes: where a save does not come to its end soon, because its threads wait for a rank that is
  // gone, all ranks end with that error. Unwinding would wait for them.
  void leave(const Error& error);

  // Where saves will be copied, their memory is taken now: a machine that lacks it says so before the first step.
  void start(const train::Progress& progress) override;
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
  bool has_own();
  // Whether the file lies in this run's own directory, as rank 0 sees it. Collective.
  bool is_own(const std::string& path) const;
  // Whether it is the last of them, where there are any. Collective.
  bool is_newest(const std::string& path) const;
  // Whether the run that saved this file had been told to go on from `resume`. Collective.
  bool went_on_from(const std::string& resume, const std::string& path);
  void check_probe(const RunState& stored, const std::string& path);
  RunState state_at(const train::Progress& progress);
  void start_save(const train::Progress& progress, bool copied);
  Saved save(const LocalTensors& tensors, const RunState& state);
  void wait_for_save(std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max());
  Saved save_in_steps(const LocalTensors& tensors, const RunState& state);
  void collect();
  void note_failure(const Error& error);
  LocalTensors tensors() const;

  CheckpointParts parts_;
  CheckpointOptions options_;
  int64_t saved_step_ = -1;
  bool saved_whole_ = false;
  bool due_ = false;
  Snapshot snapshot_;
  double stalled_seconds_ = 0;  // of training, by the save that is under way
  int64_t failed_in_a_row_ = 0;
  std::future<Saved> saving_;  // the last member: it ends first
};

}  // namespace keel::checkpoints
