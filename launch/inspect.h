// keel inspect CKPT
#pragma once

#include <CLI/CLI.hpp>

namespace keel {

void add_inspect(CLI::App& program);

}  // namespace keel
