#include "framework/io/event_command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "framework/base/log.h"

namespace keel::io {
namespace {

constexpr size_t kMostWaiting = 256;
constexpr useconds_t kPause_microseconds = 5000;

// A file without a name: a command that never reads its input keeps nobody waiting, as a pipe would.
class Input {
 public:
  explicit Input(const std::string& line) : file_(memfd_create("keel event", MFD_CLOEXEC)) {
    const bool written = file_ >= 0 && write(file_, line.data(), line.size()) == ssize_t(line.size());
    if (written) lseek(file_, 0, SEEK_SET);
  }
  ~Input() {
    if (file_ >= 0) close(file_);
  }
  int get() const { return file_; }

 private:
  int file_;
};

// In a process group of its own, so that what it starts is killed with it; with the default handling of signals.
int spawn(pid_t& child, const std::string& command, const Input& input) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input.get(), STDIN_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::string shell = "sh", flag = "-c", text = command;
  char* arguments[] = {shell.data(), flag.data(), text.data(), nullptr};
  const int failed = posix_spawn(&child, "/bin/sh", &files, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  return failed;
}

}  // namespace

EventCommand::EventCommand(std::string command, double limit_seconds)
    : command_(std::move(command)), limit_seconds_(limit_seconds), thread_([this] { work(); }) {}

EventCommand::~EventCommand() {
  {
    std::lock_guard lock(mutex_);
    last_moment_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_seconds_));
  }
  arrived_.notify_all();
  thread_.join();
}

void EventCommand::tell(const Json& event) {
  const std::string line = json_line(event);
  {
    std::lock_guard lock(mutex_);
    if (queue_.size() < kMostWaiting)
      queue_.push_back(line);
    else
      log::warning("stability.on_event is too slow: {} events wait, one is dropped", queue_.size());
  }
  arrived_.notify_all();
}

void EventCommand::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [&] { return closing() || !queue_.empty(); });
    if (queue_.empty()) return;
    if (Clock::now() > last_moment_.load())
      return log::warning("the run has ended, and {} events were not told to stability.on_event, which is too slow",
                          queue_.size());
    const std::string line = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    run(line);
    lock.lock();
  }
}

void EventCommand::run(const std::string& line) {
  const Input input(line);
  pid_t child = 0;
  if (const int failed = spawn(child, command_, input); failed != 0)
    return log::warning("stability.on_event cannot be started: {}", std::strerror(failed));
  const auto begin = Clock::now();
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (seconds_since(begin) > limit_seconds_ || Clock::now() > last_moment_.load()) {
      kill(-child, SIGKILL);
      waitpid(child, &status, 0);
      return log::warning("stability.on_event was killed after {} s (stability.on_event_limit): {}", limit_seconds_,
                          command_);
    }
    usleep(kPause_microseconds);
  }
  if (status != 0) log::warning("stability.on_event failed (wait status {}): {}", status, command_);
}

}  // namespace keel::io
