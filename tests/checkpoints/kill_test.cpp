// CASES R34: a saver killed at random moments leaves complete files and nothing that is taken for one.
#include <fcntl.h>
#include <sys/wait.h>

#include <csignal>
#include <random>

#include "checkpoints/latest.h"
#include "tests/checkpoints/single.h"

namespace keel::checkpoints {
namespace {

constexpr int kKills = 3;

class Kill : public Single {
 protected:
  // Runs the saver until it has saved a file and then `microseconds` more, and kills it. The last step it reported.
  int64_t save_and_kill(int64_t first_step, useconds_t microseconds) {
    int ends[2];
    require(pipe2(ends, O_CLOEXEC) == 0, "no pipe");
    const pid_t child = fork();
    if (child == 0) {
      dup2(ends[1], STDOUT_FILENO);
      execl(SAVER, SAVER, folder.path().c_str(), std::to_string(first_step).c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    FILE* lines = fdopen(ends[0], "r");
    long long step = -1, last = -1;
    if (std::fscanf(lines, "%lld", &step) == 1) usleep(microseconds);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the saver ended by itself";
    for (last = step; std::fscanf(lines, "%lld", &step) == 1;) last = step;
    std::fclose(lines);
    return last;
  }
};

TEST_F(Kill, LeavesCompleteFilesOnly) {
  std::mt19937 random(std::random_device{}());
  int64_t next = 1;
  for (int i = 0; i < kKills; ++i) {
    const int64_t reported = save_and_kill(next, random() % 20000);
    ASSERT_GE(reported, next);
    const auto latest = find_latest(*world, io, folder.path());
    ASSERT_TRUE(latest);
    const int64_t step = step_of(std::filesystem::path(*latest).filename());
    EXPECT_GE(step, reported);      // what was reported is there
    EXPECT_LE(step, reported + 1);  // at most the one that it had not reported yet
    for (const std::string& file : complete_files(folder.path())) {
      state.clear();
      read_tensors(io, file, state.tensors(), "rms");
      EXPECT_EQ(state.wrong(), 0) << file;
    }
    next = step + 1;
  }
  remove_leftovers(folder.path());
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_GE(step_of(entry.path().filename()), 0) << entry.path();
  save(folder / file_name(next));
  EXPECT_EQ(find_latest(*world, io, folder.path()), folder / file_name(next));
}

}  // namespace
}  // namespace keel::checkpoints
