// What a run tells of its steps where it ends or goes back, from its own files: a line, and an event.
#pragma once

#include "checkpoints/recovery.h"
#include "framework/train/hook.h"

namespace keel {

struct RunTold {
  std::string directory;  // of the run
  train::Note note;
};

// What was given up, why, and how it goes on.
void tell_rollback(const RunTold& run, const checkpoints::Rollback& rollback, const train::TroubledSteps& troubled,
                   int64_t fallbacks_taken);
// Spike scores over all steps: as long as reading metrics.jsonl takes.
void tell_spikes(const RunTold& run);

}  // namespace keel
