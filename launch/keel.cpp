// The program: one file per subcommand. Exit codes: 0 done, 1 failed, 2 wrong input, 3 stopped on instability, 4 out of
// time or preempted, and saved.
#include <algorithm>

#include "framework/base/build_config.h"
#include "framework/base/text.h"
#include "launch/common/commands.h"
#include "launch/common/environment.h"

namespace keel {
namespace {

void check_command(const CLI::App& program, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands({})) names.push_back(command->get_name());
  if (word.starts_with('-') || std::find(names.begin(), names.end(), word) != names.end()) return;
  throw input_error("there is no command '{}'{} (keel --help lists them)", word, did_you_mean(word, names, ", "));
}

// Commands that read and write files alone do it once, however many ranks were started.
bool needs_one_rank(std::string_view word) {
  constexpr std::string_view kWords[] = {"inspect", "report", "plan", "tokenize", "watch", "ngram"};
  return std::ranges::find(kWords, word) != std::end(kWords);
}

void parse(CLI::App& program, int argc, char** argv, bool speaks) {
  try {
    if (argc == 1) throw CLI::CallForHelp();
    program.parse(argc, argv);
  } catch (const CLI::Success& help) {  // --help, --version
    if (speaks) program.exit(help);
  } catch (const CLI::ParseError& error) {
    throw input_error("{} (keel --help, or keel COMMAND --help)", error.what());
  }
}

// With a separator that no argument can contain.
std::string command_line(int argc, char** argv) {
  std::string text;
  for (int i = 1; i < argc; ++i) text += std::string(argv[i]) + '\0';
  return text;
}

int run(int argc, char** argv, comm::World& world) {
  comm::require_same(world.all(), "the program (keel --version)", build_identity());
  comm::require_same(world.all(), "the command line", command_line(argc, argv));
  CLI::App program("Keel trains transformers with Query-Key Normalization, on one CPU or on many ranks under mpirun.",
                   "keel");
  program.set_version_flag("--version", KEEL_VERSION " (" KEEL_COMMIT ")");
  program.require_subcommand(1);
  int exit_code = 0;
  add_train(program, world, exit_code);
  add_ablate(program, world, exit_code);
  add_eval(program, world);
  add_generate(program, world);
  add_inspect(program);
  add_report(program);
  add_convert(program, world);
  add_plan(program);
  add_tokenize(program);
  add_watch(program);
  add_ngram(program);
  add_bench(program, world);
  add_doctor(program, world);
  const std::string word = argc > 1 ? argv[1] : "--help";
  check_command(program, word);
  if (!needs_one_rank(word)) return parse(program, argc, argv, world.rank() == 0), exit_code;
  const comm::TimeLimit as_long_as_it_takes(world.all(), 0);
  world.do_on_rank_0([&] { parse(program, argc, argv, true); });
  return exit_code;
}

}  // namespace
}  // namespace keel

int main(int argc, char** argv) {
  return keel::comm::run({}, [&](keel::comm::World& world) { return keel::run(argc, argv, world); });
}
