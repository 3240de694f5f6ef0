// The program: one file per subcommand, each adding itself here. Exit codes: 0 done, 1 failed, 2 wrong input, 3 stopped
// on instability, 4 out of time or preempted, and saved.
#include <CLI/CLI.hpp>

#include "framework/base/build_config.h"
#include "launch/commands.h"

namespace keel {
namespace {

int run(int argc, char** argv) {
  CLI::App program("Keel trains transformers with Query-Key Normalization, on one CPU or on many ranks under mpirun.",
                   "keel");
  program.set_version_flag("--version", KEEL_VERSION " (" KEEL_COMMIT ")");
  program.require_subcommand(1);
  program.fallthrough(false);
  int exit_code = 0;
  add_train(program, exit_code);
  add_eval(program);
  add_generate(program);
  add_inspect(program);
  add_tokenize(program);
  add_ngram(program);
  add_bench(program);
  add_doctor(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : int(ErrorKind::input);
  }
  return exit_code;
}

}  // namespace
}  // namespace keel

int main(int argc, char** argv) {
  return keel::comm::run_program(argc, argv, [&] { return keel::run(argc, argv); });
}
