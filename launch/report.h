// keel report DIR
#pragma once

#include <CLI/CLI.hpp>

namespace keel {

void add_report(CLI::App& program);

}  // namespace keel
