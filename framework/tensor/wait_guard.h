// What looks after the work of a thread's GPU while the thread waits for it: a GPU that waits for another rank would
// keep its host waiting for ever. As long as a guard lives, its thread waits for streams and events by asking, and
// looks in between; what look() throws ends the wait.
#pragma once

namespace keel {

class WaitGuard {
 public:
  WaitGuard(const WaitGuard&) = delete;
  WaitGuard& operator=(const WaitGuard&) = delete;

  // Whether the calling thread has guards.
  static bool any();
  static void look_all();
  static void unwind_all() noexcept;

 protected:
  WaitGuard();
  ~WaitGuard();

 private:
  // Throws where the work will not end.
  virtual void look() = 0;
  // GPU memory is released while an exception passes: from here on nothing may use it.
  virtual void unwind() noexcept = 0;
};

}  // namespace keel
