#include "framework/ops/attention_cuda.h"

namespace keel::ops::cuda {

void attention_backward(const AttentionGradients&, ConstTensor, const AttentionOutputs&, const AttentionInputs&,
                        const AttentionOptions&) {
  throw Error(ErrorKind::internal, "attention's backward has no CUDA twin");
}

}  // namespace keel::ops::cuda
