// The tokenizer of a run or of an imported model.
#pragma once

#include <memory>
#include <optional>

#include "framework/data/tokenizer.h"
#include "launch/run_setup.h"

namespace keel {

// data.tokenizer, as it is written or beside the checkpoint (a model that was moved); else what the notes of the
// training data name. Throws where there is none.
std::unique_ptr<data::Tokenizer> tokenizer_of_run(const FullConfig& config, const std::string& checkpoint);
// The id that ends a text, where the tokenizer is there.
std::optional<int64_t> end_of_text_of_run(const FullConfig& config, const std::string& checkpoint);

}  // namespace keel
