// `keel watch` in a terminal: what it shows moves on, and nothing of it is left.
#include <gmock/gmock.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>

#include <chrono>
#include <set>

#include "framework/io/jsonl.h"
#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// A program in a terminal of 10 rows and 60 columns of its own.
class Terminal {
 public:
  Terminal(const std::filesystem::path& directory, std::vector<std::string> command) {
    winsize size{.ws_row = 10, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
    process_ = forkpty(&end_, nullptr, nullptr, &size);
    if (process_ == 0) {
      std::vector<char*> arguments;
      for (std::string& word : command) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      std::filesystem::current_path(directory);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    tcgetattr(end_, &before_);
  }
  ~Terminal() { close(end_); }

  // Until its end says this; false where it never does.
  bool shows(const std::string& text) {
    const auto begin = Clock::now();
    while (shown_.find(text) == std::string::npos)
      if (Clock::now() - begin > kPatience || !read_more()) return false;
    return true;
  }
  void type(char key) { EXPECT_EQ(write(end_, &key, 1), 1); }
  void send(int signal) { kill(process_, signal); }
  // The exit code; that of a program that does not end is 128 + 9.
  int ended() {
    const auto begin = Clock::now();
    while (Clock::now() - begin < kPatience && read_more()) continue;
    kill(process_, SIGKILL);  // nothing to one that has ended
    int status = 0;
    waitpid(process_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Whether keys are echoed, and so on, as before.
  bool is_as_before() const {
    termios now;
    return tcgetattr(end_, &now) == 0 && now.c_lflag == before_.c_lflag && now.c_iflag == before_.c_iflag &&
           now.c_oflag == before_.c_oflag;
  }
  const std::string& shown() const { return shown_; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPatience{60};
  bool read_more() {
    pollfd ready{.fd = end_, .events = POLLIN, .revents = 0};
    char block[4096];
    const ssize_t got = poll(&ready, 1, 60000) > 0 ? read(end_, block, sizeof block) : 0;
    if (got > 0) shown_.append(block, size_t(got));
    return got > 0;
  }

  int end_ = -1;
  pid_t process_ = -1;
  termios before_{};
  std::string shown_;
};

class Watch : public RunFixture {
 protected:
  void write_step(int64_t step) {
    io::JsonLinesWriter((run_ / "metrics.jsonl").string())
        .write({{"step", step}, {"loss", 5.0}, {"largest_logit", 3.0}});
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run_)) names.insert(entry.path().string());
    return names;
  }

  std::filesystem::path run_;
};

constexpr int kCtrlC = 3;

TEST_F(Watch, ShowsWhatMovesAndGivesTheTerminalBack) {
  run_ = directory_ / "r";
  std::filesystem::create_directories(run_);
  for (int end : {SIGINT, SIGTERM, SIGHUP}) {
    std::filesystem::remove(run_ / "metrics.jsonl");
    write_step(41);
    const auto before = files();
    Terminal terminal(directory_, {KEEL_PROGRAM, "watch", "r"});
    ASSERT_TRUE(terminal.shows("step 41")) << terminal.shown();
    const std::string second = "\033[?1049h\033[?25l";  // that screen, without a cursor
    EXPECT_THAT(terminal.shown(), HasSubstr(second + "\033[H")) << "drawn from its corner";
    write_step(42);
    ASSERT_TRUE(terminal.shows("step 42")) << terminal.shown();
    EXPECT_EQ(terminal.shown().rfind(second), terminal.shown().find(second)) << "entered once";
    EXPECT_THAT(terminal.shown(), Not(HasSubstr("\033[?1049l"))) << "not left before it ends";
    if (end == SIGINT)
      terminal.type(kCtrlC);
    else
      terminal.send(end);
    EXPECT_EQ(terminal.ended(), 0) << terminal.shown();
    EXPECT_THAT(terminal.shown(), EndsWith("\033[?25h\033[?1049l")) << "the cursor and the first screen are back";
    EXPECT_TRUE(terminal.is_as_before());
    EXPECT_EQ(files(), before);
  }
}

TEST_F(Watch, AWrongFolderIsToldOnTheFirstScreen) {
  Terminal terminal(directory_, {KEEL_PROGRAM, "watch", "."});
  EXPECT_EQ(terminal.ended(), 2);
  EXPECT_THAT(terminal.shown(), HasSubstr("no run and no ablation here"));
  EXPECT_THAT(terminal.shown(), Not(HasSubstr("1049")));
}

}  // namespace
}  // namespace keel::testing
