// keel watch DIR
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <ctime>
#include <memory>

#include "framework/lab/screen.h"
#include "launch/common/commands.h"

namespace keel {
namespace {

volatile std::sig_atomic_t asked_to_end = 0;

// The terminal's second screen, as long as this lives: what was shown before comes back.
class SecondScreen {
 public:
  SecondScreen() { say("\033[?1049h\033[?25l"); }
  ~SecondScreen() { say("\033[?25h\033[?1049l"); }
  void show(const std::vector<std::string>& lines) {
    std::string text = "\033[H";
    for (size_t i = 0; i < lines.size(); ++i) text += (i > 0 ? "\r\n" : "") + lines[i] + "\033[K";
    say(text + "\033[J");
  }

 private:
  static void say(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
};

lab::ScreenSize terminal_size() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) return {};
  return {size.ws_row, size.ws_col};
}

void run(const std::string& directory, bool once) {
  if (once || isatty(STDOUT_FILENO) != 1) {
    for (const std::string& line : lab::screen_of(directory, {.rows = 1000, .columns = 160}))
      std::printf("%s\n", line.c_str());
    return;
  }
  lab::screen_of(directory, terminal_size());  // its error belongs on the first screen
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, [](int) { asked_to_end = 1; });
  SecondScreen screen;
  while (!asked_to_end) {
    screen.show(lab::screen_of(directory, terminal_size()));
    const timespec second{1, 0};
    nanosleep(&second, nullptr);  // a signal ends it early
  }
}

}  // namespace

void add_watch(CLI::App& program) {
  auto directory = std::make_shared<std::string>();
  auto once = std::make_shared<bool>(false);
  CLI::App* command =
      program.add_subcommand("watch", "Show a run or an ablation while it goes on; Ctrl-C ends the show");
  command->add_option("directory", *directory, "runs/NAME")->required();
  command->add_flag("--once", *once, "Print what there is now, and end");
  command->callback([directory, once] { run(*directory, *once); });
}

}  // namespace keel
