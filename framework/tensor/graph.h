// Work that is started again and again with the same tensors, recorded once (a CUDA graph): afterwards the host makes
// one call instead of one per op. Elsewhere the work just runs, every time.
//
//   Graph graph;                           // one per kind of work
//   graph.run(device, [&] { ops; });       // the first time as it stands, the second time recorded, then replayed
//
// The work starts ops and copies on Stream::current, which is not the default stream, and on streams that it forks to
// and joins again over events. The first time it may size workspaces and choose algorithms; then it allocates nothing,
// waits for nothing and reaches no host memory but pinned. What it does on the host does not happen in a replay, and
// addresses, sizes and numbers passed by value stay those of the recording: what they point at outlives the graph.
#pragma once

#include <memory>
#include <utility>

#include "framework/tensor/stream.h"

namespace keel {

class Graph {
 public:
  template <class Work>
  void run(Device device, const Work& work) {
    if (device.kind != DeviceKind::cuda || !std::exchange(ran_, true)) return work();
    const Stream& stream = Stream::current(device);
    if (!executable_) {
      Recording recording(stream);
      work();
      executable_.reset(recording.end());
    }
    launch(stream);
  }

 private:
  struct Free {
    void operator()(void* executable) const;
  };
  // What is started on the stream while it lives is recorded. An exception leaves the stream as it was before.
  class Recording {
   public:
    explicit Recording(const Stream& stream);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    void* end();

   private:
    const Stream& stream_;
    bool ended_ = false;
  };

  void launch(const Stream& stream) const;

  bool ran_ = false;
  std::unique_ptr<void, Free> executable_;  // cudaGraphExec_t
};

}  // namespace keel
