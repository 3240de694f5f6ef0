// The CUDA twin of stream.h: handles are cudaStream_t and cudaEvent_t.
#pragma once

#include "framework/tensor/device.h"

namespace keel::cuda {

void* make_stream(Device device, bool urgent);
void destroy_stream(void* stream);
// A null stream is the device's default stream.
void synchronize_stream(Device device, void* stream);
bool stream_is_done(Device device, void* stream);
void stream_wait(Device device, void* stream, void* event);

void* make_event(Device device);
void destroy_event(void* event);
void record_event(void* event, Device device, void* stream);
bool event_is_done(void* event);
void synchronize_event(void* event);

}  // namespace keel::cuda
