// What goes wrong in a kernel: recorded once, with the thread and the place, as the reason of the launch's error.
#pragma once

#include <source_location>
#include <string>

namespace keel::cuda_host {

// Thrown through a kernel to end its threads; nothing else catches it.
struct Stop {};

// Ends the running block: records the sentence (the first one of a launch counts) and throws Stop.
[[noreturn]] void fault(const std::string& sentence);
// Records without throwing.
void record_fault(const std::string& sentence);
// The first sentence recorded since the last clear, or empty.
std::string recorded_fault();
void clear_fault();

// "framework/ops/norm_cuda.cu:31"
std::string text(const std::source_location& place);
// "thread (3, 0, 0) of block (0, 1, 0)", or "the host" outside kernels.
std::string running_thread();

// Turns SIGSEGV into a sentence on stderr before the process ends by it.
void explain_segmentation_faults();

}  // namespace keel::cuda_host
