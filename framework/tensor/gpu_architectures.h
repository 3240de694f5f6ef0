// Whether the kernels of a build run on a GPU.
#pragma once

#include <string>

#include "framework/tensor/gpu.h"

namespace keel {

// What to do where `compiler` (KEEL_CUDA_COMPILER: "nvcc 13.0.88 for 80;90a") has made no kernels for the GPU; "" where
// it has. A plain number also runs on what came later, by its PTX; one with a letter, on its own capability only. Words
// such as "native" are taken to run.
std::string missing_kernels(const Gpu& gpu, const std::string& compiler);

}  // namespace keel
