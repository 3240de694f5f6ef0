// Where a run in trouble goes back to, and with what: which checkpoint, without which samples, with which of
// stability.fallbacks. What was tried is kept in DIRECTORY/recovery.json, written before anything else is done, so that
// a run that is killed and started again neither counts anew nor takes the same samples again. Remove the file to count
// anew.
#pragma once

#include <optional>

#include "framework/comm/communicator.h"
#include "framework/data/sample_position.h"
#include "framework/train/stability_hook.h"

namespace keel::checkpoints {

// What was decided.
struct Rollback {
  std::vector<std::string> files;  // to go on from, the best one last; none: from the beginning. On rank 0
  int64_t step = 0;                // of the best one; 0: the beginning
  int64_t count = 0;               // of rollbacks since the last calm
  bool next_fallback = false;
  std::optional<data::SampleRange> left_out;
};

class Recovery {
 public:
  // Of a run's directory; its checkpoints lie in DIRECTORY/checkpoints. Reads what an earlier process has noted.
  // Collective.
  Recovery(comm::Communicator& world, const std::string& directory, const config::StabilityConfig& options);

  // Whether a rollback, or a fallback, is left for trouble that began at this step. The same on all ranks.
  bool may_roll_back(int64_t first_step) const;
  // How many fallbacks have been taken: the config is that of the last one.
  int64_t fallbacks_taken() const { return fallbacks_taken_; }

  // What earlier trouble changes of the run from here on, in words; "" where nothing.
  std::string in_force() const;

  // Decides, and notes it. Collective.
  Rollback roll_back(const train::TroubledSteps& troubled);
  // What an earlier process decided and did not come to do. Collective.
  std::optional<Rollback> pending();
  // It has been done: what was gone back to is loaded, and nothing of later steps is left. Collective.
  void went_back();
  // After loading: nothing that was left out is taken again.
  void leave_out(data::SamplePosition& position) const;

 private:
  bool calm_at(int64_t first_step) const;
  std::vector<std::string> candidates(int64_t first_step) const;
  void read(const std::string& text);
  void write();
  std::string text() const;

  comm::Communicator& world_;
  std::string directory_;
  config::RollbackConfig options_;
  int64_t fallbacks_, calm_steps_;
  std::vector<int64_t> gone_back_to_;  // steps, since the last calm or fallback
  int64_t fallbacks_taken_ = 0;
  int64_t last_trouble_ = 0;  // step
  std::vector<data::SampleRange> left_out_;
  int64_t going_back_to_ = kNowhere;  // step
  static constexpr int64_t kNowhere = -1;
};

}  // namespace keel::checkpoints
