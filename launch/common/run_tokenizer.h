// The tokenizer of a run or of an imported model.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "framework/data/tokenizer.h"
#include "launch/common/run_setup.h"

namespace keel {

struct TokenizerPlace {
  std::string path;                       // a folder, a tokenizer.json or a .model; "" for bytes
  std::optional<data::TokenNotes> notes;  // of the training data, where those say which one made them
};

// data.tokenizer, as it is written or beside the checkpoint (a model that was moved); else what the notes of the
// training data name. Throws where neither says one, or another one is there than the model was trained with.
TokenizerPlace find_tokenizer(const FullConfig& config, const std::string& checkpoint);
// Throws as well where it is not there.
std::unique_ptr<data::Tokenizer> tokenizer_of_run(const FullConfig& config, const std::string& checkpoint);
// The id that ends a text, where the tokenizer is there.
std::optional<int64_t> end_of_text_of_run(const FullConfig& config, const std::string& checkpoint);

}  // namespace keel
