// The files of a tokenizer that come with an imported model and go with an exported one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace keel {

// Copies the tokenizer at `from` (a folder, a tokenizer.json or a SentencePiece model) into the folder `to`, under the
// names that transformers looks for. Returns whether there is one. `end_of_text` is the id that ends a text, for a
// tokenizer.json without a tokenizer_config.json that says it.
bool copy_tokenizer(const std::string& from, const std::string& to, std::optional<int64_t> end_of_text = std::nullopt);
// Of an imported model, kept beside its checkpoint: "DIR/run.h5" -> "DIR/run-tokenizer".
std::string tokenizer_folder(const std::string& checkpoint);

}  // namespace keel
