// keel plan CONFIG: what a run would take, without running it.
#pragma once

#include <CLI/CLI.hpp>

namespace keel {

void add_plan(CLI::App& program);

}  // namespace keel
