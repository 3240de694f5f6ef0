// The CUDA twin of graph.h: streams are cudaStream_t, graphs cudaGraphExec_t.
#pragma once

#include "framework/tensor/device.h"

namespace keel::cuda {

void begin_recording(Device device, void* stream);
void* end_recording(void* stream);
void give_up_recording(void* stream);
void launch_graph(void* graph, Device device, void* stream);
void destroy_graph(void* graph);

}  // namespace keel::cuda
