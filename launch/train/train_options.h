// From the config's sections to what the trainer and its hooks are told.
#pragma once

#include "framework/train/trainer.h"
#include "launch/common/run_setup.h"

namespace keel {

train::TrainerOptions trainer_options(const config::RunConfig& run);
// Each of stability.fallbacks must make a whole config, with changes that a run on so many ranks can go on with; 0
// ranks: not known yet.
void check_fallbacks(const FullConfig& config, int64_t ranks = 0);
// Where nothing bounds a head's logits that QK-clip could scale, the config is refused.
void check_qk_clip(const FullConfig& config);
// Of a stored config's text.
config::RunConfig stored_run(const std::string& text);
// What changed since then, "key: stored -> now" each; throws where a fixed key did.
std::vector<std::string> changes_since(const config::RunConfig& then, const FullConfig& now);
// checkpoint.resume in a word: auto, none or a path.
std::string resume_word(const config::RunConfig& run);
// Throws where the model of a stored config (`name` is its file) is another function of its weights.
void check_same_model(const std::string& stored, const std::string& name, const FullConfig& now);

}  // namespace keel
