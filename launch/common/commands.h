// The subcommands. Each adds itself to the program; its callback does the work and throws keel::Error. `world` is all
// ranks of this start, one without mpirun; those without it run on rank 0 alone.
#pragma once

#include <CLI/CLI.hpp>

#include "framework/comm/world.h"

namespace keel {

// Leaves 0, 3 (stopped on instability) or 4 (out of time, saved) in `exit_code`.
void add_train(CLI::App& program, comm::World& world, int& exit_code);
// Leaves 0, 1 (cells failed) or 4 (out of time or asked to stop; the same command goes on) in `exit_code`.
void add_ablate(CLI::App& program, comm::World& world, int& exit_code);
void add_eval(CLI::App& program, comm::World& world);
void add_generate(CLI::App& program, comm::World& world);
void add_bench(CLI::App& program, comm::World& world);
void add_doctor(CLI::App& program, comm::World& world);
void add_convert(CLI::App& program, comm::World& world);
void add_inspect(CLI::App& program);
void add_ngram(CLI::App& program);
void add_plan(CLI::App& program);
void add_report(CLI::App& program);
void add_tokenize(CLI::App& program);
void add_watch(CLI::App& program);

}  // namespace keel
