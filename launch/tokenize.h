// keel tokenize TEXT... --out PREFIX
#pragma once

#include <CLI/CLI.hpp>

namespace keel {

void add_tokenize(CLI::App& program);

}  // namespace keel
