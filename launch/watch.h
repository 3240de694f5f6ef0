// keel watch DIR
#pragma once

#include <CLI/CLI.hpp>

namespace keel {

void add_watch(CLI::App& program);

}  // namespace keel
