// keel ngram TRAIN VALID --orders 2,4,5
#pragma once

#include <CLI/CLI.hpp>

namespace keel {

void add_ngram(CLI::App& program);

}  // namespace keel
