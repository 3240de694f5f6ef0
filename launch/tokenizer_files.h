// The tokenizer that comes with an imported model: its files, kept together in one folder beside the checkpoint, and
// given back when the model is exported.
#pragma once

#include <string>

namespace keel {

// Copies what tokenizer files `from` holds to `to`. Returns whether there is a tokenizer among them.
bool copy_tokenizer(const std::string& from, const std::string& to);
// "DIR/run.h5" -> "DIR/run-tokenizer".
std::string tokenizer_folder(const std::string& checkpoint);

}  // namespace keel
