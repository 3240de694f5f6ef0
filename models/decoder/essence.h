// Whether two configs describe the same function of the same weights, whatever they say of how those begin and are
// trained, and in whichever form: a default or the number that it is.
#pragma once

#include "models/decoder/decoder_config.h"

namespace keel::models {

// The keys of `model:` in which the functions differ, by the essence of both.
std::vector<config::Difference> differences_of_functions(const DecoderConfig& stored, const DecoderConfig& now);

}  // namespace keel::models
