// When one rank has waited too long, every rank says where it stands, also those that compute or hang: a thread of each
// listens for the alarm.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "framework/comm/mpi.h"

namespace keel::comm {

class Watch {
 public:
  // `standing` is asked on any thread. Collective over `parent`, which is duplicated.
  Watch(MPI_Comm parent, std::function<std::string()> standing);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Says where this rank stands, tells the others to, and gives them a moment.
  void alarm();

 private:
  void listen();
  void say();

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::function<std::string()> standing_;
  std::atomic<bool> said_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace keel::comm
