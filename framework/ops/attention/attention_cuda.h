// The CUDA twins of attention.h; arguments are checked already.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "framework/ops/attention/attention.h"

namespace keel::ops::cuda {

// Head sizes up to 256.
void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs, const AttentionOptions& options);
void attention_backward(const AttentionGradients& gradients, ConstTensor d_out, const AttentionOutputs& outputs,
                        const AttentionInputs& inputs, const AttentionOptions& options);

void require_forward_fits(Device device, DType dtype, int64_t head_dim);
void require_backward_fits(Device device, DType dtype, int64_t head_dim);

// What a kernel claims of a multiprocessor. No tool sees shared memory that a launch asks for: tests/cuda and gpu_check
// are told here.
struct KernelUse {
  std::string name;
  std::string mangled;  // a part of the kernel's name as compilers write it, and of those that share its tiles
  const void* kernel;
  int threads, blocks;       // of a block; of a multiprocessor
  size_t shared_bytes;       // of a block
  size_t least_total_bytes;  // of a multiprocessor's shared memory, where smaller ones take another kernel
};
// In bf16.
std::vector<KernelUse> forward_kernels();
std::vector<KernelUse> backward_kernels();
// How many blocks a multiprocessor holds, as the device says; none where it takes another kernel.
std::optional<int> held_blocks(Device device, const KernelUse& use);

}  // namespace keel::ops::cuda
