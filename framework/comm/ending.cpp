// How a run ends: one line, one exit code, all ranks.
//
// Every rank that comes to its end, good or bad, joins one non-blocking exchange of exit codes. When it completes, all
// know the lowest rank that failed, that one speaks, and all leave in order. A rank whose body returned, with whatever
// code, waits for the others as long as they work. A rank that failed cannot know whether the others will ever come
// (they may be waiting for it), so it waits kPatience_seconds, then prints and aborts all. Where several failed, each
// has announced itself to the others by then, and only the lowest prints.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "framework/base/clock.h"
#include "framework/comm/agreement.h"
#include "framework/comm/world.h"
#include "framework/tensor/wait_guard.h"

namespace keel::comm {
namespace {

constexpr double kAnnounce_seconds = 0.5;  // most errors are found by all ranks at once and need no announcements
constexpr double kPatience_seconds = 2;
constexpr double kGrace_seconds = 1;  // for a lower rank that failed, too, to print and abort
constexpr int kAnnounceTag = 32001;
constexpr useconds_t kPause_microseconds = 200;

struct Outcome {
  int code = 0;
  std::string line;
  bool failed = false;  // an exception ended the body, which else returned the code
};

void print(const Outcome& outcome) {
  if (outcome.line.empty()) return;
  std::string text = "keel: error: " + outcome.line + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

bool mpi_runs() {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started && !ended;
}

struct WorldPlace {
  int rank = 0, size = 1;
};
WorldPlace place_in_world() {
  WorldPlace place;
  if (!mpi_runs()) return place;
  MPI_Comm_rank(MPI_COMM_WORLD, &place.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &place.size);
  return place;
}

// The line for the exception that is being handled.
Outcome describe() {
  const auto [rank, size] = place_in_world();
  const std::string place = size > 1 ? fmt::format("rank {}: ", rank) : "";
  const int internal = int(ErrorKind::internal);
  try {
    throw;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::internal) return {e.exit_code(), e.what(), true};
    return {internal, fmt::format("{}{}: {}", place, e.where(), e.what()), true};
  } catch (...) {
    return {internal, place + text_of_exception(), true};
  }
}

// From here on. The launcher's SIGTERM after the abort of another rank ends one that has failed, too, before it speaks;
// where the first rank that is gone makes the launcher end the others, they are about to, and ignore it.
void answer_signals(void (*how)(int)) {
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) std::signal(number, how);
}

// Tells the ranks above this one that it has failed.
void announce(const WorldPlace& place) {
  for (int other = place.rank + 1; other < place.size; ++other) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(nullptr, 0, MPI_BYTE, other, kAnnounceTag, MPI_COMM_WORLD, &request);
    MPI_Request_free(&request);
  }
}

// Prints, unless a lower rank has announced that it failed and does so within the grace; ends all ranks.
[[noreturn]] void abort_all(const Outcome& mine) {
  int lower_failed = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, kAnnounceTag, MPI_COMM_WORLD, &lower_failed, MPI_STATUS_IGNORE);
  if (lower_failed) usleep(useconds_t(kGrace_seconds * 1e6));
  print(mine);
  const int code = std::max(mine.code, int(ErrorKind::internal));
  MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

// The common end of all ranks over MPI_COMM_WORLD, which is used for nothing else after the start. MPI's return codes
// are not looked at here: the way out of any failure is the same abort.
class Ending {
 public:
  explicit Ending(const Outcome& mine) : mine_(mine), codes_(size_t(place_.size), 0) {}

  // The code all ranks leave with; where they cannot agree, does not return.
  int agree() {
    if (mine_.failed) answer_signals(SIG_DFL);
    const int mine = mine_.failed ? -mine_.code : mine_.code;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgather(&mine, 1, MPI_INT, codes_.data(), 1, MPI_INT, MPI_COMM_WORLD, &request);
    bool announced = false;
    for (int done = 0; !done;) {
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) abort_all(mine_);
      if (done) break;
      usleep(kPause_microseconds);
      if (!mine_.failed) continue;
      if (waited_seconds() > kAnnounce_seconds && !std::exchange(announced, true)) announce(place_);
      if (waited_seconds() > kPatience_seconds) abort_all(mine_);
    }
    const auto failed = std::find_if(codes_.begin(), codes_.end(), [](int code) { return code < 0; });
    if (failed - codes_.begin() == place_.rank) print(mine_);
    if (failed != codes_.end()) return -*failed;
    const auto other = std::find_if(codes_.begin(), codes_.end(), [](int code) { return code != 0; });
    return other == codes_.end() ? 0 : *other;
  }

 private:
  double waited_seconds() const { return seconds_since(begin_); }

  const WorldPlace place_ = place_in_world();
  const Outcome& mine_;
  std::vector<int> codes_;  // of the ranks; negative where one failed
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace

void end_all_ranks(const Error& error) {
  Outcome mine;
  try {
    throw error;
  } catch (...) {
    mine = describe();
  }
  if (mpi_runs()) {
    const WorldPlace place = place_in_world();
    answer_signals(SIG_DFL);
    announce(place);
    if (place.rank > 0) usleep(useconds_t(kAnnounce_seconds * 1e6));  // a lower one may be about to say the same
    abort_all(mine);
  }
  print(mine);
  _exit(mine.code);
}

int run(const WorldOptions& options, const std::function<int(World&)>& body) {
  Outcome mine;
  std::optional<World> world;
  try {
    world.emplace(options);
    mine.code = body(*world);
  } catch (...) {
    mine = describe();
  }
  if (!mpi_runs()) {
    print(mine);
    return mine.code;
  }
  const int code = Ending(mine).agree();
  answer_signals(SIG_IGN);
  world.reset();
  if (mpi_runs()) MPI_Finalize();
  if (!WaitGuard::gpu_left_running()) return code;
  std::fflush(nullptr);
  _exit(code);  // cuBLASLt's end, and CUDA's own, would wait for the GPU
}

}  // namespace keel::comm
