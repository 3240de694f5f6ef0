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
  // Whether nothing that the thread's guards look after is on the GPU any more, which CUDA may wait for.
  static bool all_at_rest();
  // Whether this process has a GPU that could not be stopped. CUDA would wait for it for ever where memory, streams,
  // graphs and libraries end: they are left alone from here on, and the process ends without them.
  static bool gpu_left_running();

 protected:
  static void leave_gpu_running() noexcept;
  WaitGuard();
  ~WaitGuard();

 private:
  // Throws where the work will not end.
  virtual void look() = 0;
  // GPU memory is released while an exception passes: from here on nothing may use it.
  virtual void unwind() noexcept = 0;
  virtual bool at_rest() = 0;
};

}  // namespace keel
