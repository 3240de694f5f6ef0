#include "framework/comm/watch.h"

#include <unistd.h>

#include "framework/base/log.h"

namespace keel::comm {
namespace {

constexpr int kAlarmTag = 1;
constexpr auto kBetweenLooks = std::chrono::milliseconds(100);
constexpr useconds_t kMoment_microseconds = 1000000;  // some looks of the others, and their lines' way

}  // namespace

Watch::Watch(MPI_Comm parent, std::function<std::string()> standing) : standing_(std::move(standing)) {
  KEEL_MPI(MPI_Comm_dup(parent, &comm_));
  KEEL_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  thread_ = std::thread([this] { listen(); });
}

Watch::~Watch() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  ended_.notify_one();
  thread_.join();
  MPI_Comm_free(&comm_);
}

void Watch::say() {
  if (!said_.exchange(true)) log::warning("{}", standing_());
}

// MPI's return codes are not looked at here: a failure means that nobody can be told any more.
void Watch::listen() {
  std::unique_lock lock(mutex_);
  while (!done_) {
    int arrived = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, kAlarmTag, comm_, &arrived, MPI_STATUS_IGNORE);
    if (arrived) {
      MPI_Recv(nullptr, 0, MPI_BYTE, MPI_ANY_SOURCE, kAlarmTag, comm_, MPI_STATUS_IGNORE);
      say();
    }
    ended_.wait_for(lock, kBetweenLooks, [this] { return done_; });
  }
}

void Watch::alarm() {
  int rank = 0, size = 1;
  MPI_Comm_rank(comm_, &rank);
  MPI_Comm_size(comm_, &size);
  say();
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(nullptr, 0, MPI_BYTE, other, kAlarmTag, comm_, &request);
    MPI_Request_free(&request);
  }
  usleep(kMoment_microseconds);
}

}  // namespace keel::comm
