#include "framework/tensor/graph.h"

#include "framework/tensor/graph_cuda.h"

namespace keel {

void Graph::Free::operator()(void* executable) const {
  cuda::destroy_graph(executable);
}

Graph::Recording::Recording(const Stream& stream) : stream_(stream) {
  cuda::begin_recording(stream.device(), stream.native());
}

Graph::Recording::~Recording() {
  if (!ended_) cuda::give_up_recording(stream_.native());
}

void* Graph::Recording::end() {
  ended_ = true;
  return cuda::end_recording(stream_.native());
}

void Graph::launch(const Stream& stream) const {
  cuda::launch_graph(executable_.get(), stream.device(), stream.native());
}

}  // namespace keel
