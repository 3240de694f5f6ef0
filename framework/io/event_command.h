// A user's command for events: `sh -c COMMAND` with the event as one line of JSON on its standard input. Commands run
// one after the other on a thread of their own, each within a time limit, so that nobody waits for them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "framework/base/clock.h"
#include "framework/io/jsonl.h"

namespace keel::io {

class EventCommand {
 public:
  EventCommand(std::string command, double limit_seconds);
  // Waits for the events that are queued, all together within the limit: also while an exception passes, since the last
  // of them may say why.
  ~EventCommand();
  EventCommand(const EventCommand&) = delete;
  EventCommand& operator=(const EventCommand&) = delete;

  // Returns at once. Where a command is so slow that many events wait, the newest are dropped with a warning. A command
  // that fails or is killed is a warning, too.
  void tell(const Json& event);

 private:
  void work();
  void run(const std::string& line);
  bool closing() const { return last_moment_.load() != Clock::time_point::max(); }

  const std::string command_;
  const double limit_seconds_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::string> queue_;
  std::atomic<Clock::time_point> last_moment_ = Clock::time_point::max();
  std::thread thread_;
};

}  // namespace keel::io
