// The CUDA twin of stream.h: handles are cudaStream_t and cudaEvent_t.
#pragma once

#include "framework/tensor/device.h"

namespace keel::cuda {

void* make_stream(Device device);
void destroy_stream(void* stream);
void synchronize_stream(void* stream);
void stream_wait(void* stream, void* event);

void* make_event(Device device);
void destroy_event(void* event);
void record_event(void* event, void* stream);
bool event_is_done(void* event);
void synchronize_event(void* event);

}  // namespace keel::cuda
