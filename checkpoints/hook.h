// Saves during a run, keeps the last N, and brings a run back.
#pragma once

#include <functional>
#include <optional>
#include <variant>

#include "checkpoints/reader.h"
#include "checkpoints/writer.h"
#include "framework/train/trainer.h"

namespace keel::checkpoints {

struct CheckpointOptions {
  std::string directory;  // of the checkpoints: runs/NAME/checkpoints
  int64_t every = 0;      // steps; 0 = only where the run ends
  int64_t keep = 3;       // complete files of this run
  bool final = true;      // save where the run ends
  bool weights_only = false;
  int64_t parts = 1;
  int64_t total_steps = 0;  // of the run: one that ends before is saved
  std::vector<std::pair<std::string, std::string>> mpi_hints;
  // Called before each save: for what must not be missing from a run that goes on from it.
  std::function<void()> before_save;
  // Texts that go into each file.
  std::string config, environment, data_fingerprint, qk_norm;
  // Throws where a stored config must not be gone on with; otherwise says in lines what changed.
  std::function<std::vector<std::string>(const std::string& stored)> compare_configs;
};

// What of a run goes into a checkpoint. Everything outlives the hook.
struct CheckpointParts {
  comm::Communicator& world;
  MPI_Comm io_comm;  // all ranks, for the I/O thread alone
  io::IoThread& io;
  nn::ParameterSet& parameters;
  parallel::Mesh& mesh;
  train::Trainer& trainer;
  bool zero = true;
};

class CheckpointHook : public train::Hook {
 public:
  CheckpointHook(CheckpointParts parts, CheckpointOptions options) : parts_(parts), options_(std::move(options)) {}

  // The file to go on from: `resume` is "auto", "none" or a path. "none" in a directory that holds checkpoints is
  // refused. A path outside it is where the run begins: once it has checkpoints of its own, the newest of those is
  // meant, so that the same command goes on. Collective.
  std::optional<std::string> find(const std::string& resume);
  // Weights, moments, progress and the other hooks' states. The caller then calls trainer.weights_changed(). Returns
  // what changed in the config since. Collective.
  std::vector<std::string> load(const std::string& path);

  train::Verdict after_step(const train::StepReport& report, const train::Verdict& verdict,
                            const train::Progress& progress) override;
  void finish(const train::Progress& progress) override;

 private:
  bool has_own();
  // Whether the file lies in this run's own directory, as rank 0 sees it. Collective.
  bool is_own(const std::string& path) const;
  void save(const train::Progress& progress);
  LocalTensors tensors() const;

  CheckpointParts parts_;
  CheckpointOptions options_;
  int64_t saved_step_ = -1;
  bool due_ = false;
  bool unstable_ = false;
};

}  // namespace keel::checkpoints
