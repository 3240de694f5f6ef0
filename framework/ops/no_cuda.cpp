// Stands in the place of the *_cuda.cu files in a build without CUDA. Tensors on a GPU cannot be made there, so none of
// these is ever reached by a user.
#include "framework/ops/attention_cuda.h"
#include "framework/ops/elementwise_cuda.h"

namespace keel::ops::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::internal, "this build has no CUDA");
}

}  // namespace

void attention_forward(const AttentionOutputs&, const AttentionInputs&, const AttentionOptions&) {
  refuse();
}
void attention_backward(const AttentionGradients&, ConstTensor, const AttentionOutputs&, const AttentionInputs&,
                        const AttentionOptions&) {
  refuse();
}
void convert(Tensor, ConstTensor) {
  refuse();
}
void add(Tensor, ConstTensor, ConstTensor) {
  refuse();
}
void fill(Tensor, float) {
  refuse();
}
void scale(Tensor, float) {
  refuse();
}
double sum_of_squares(ConstTensor) {
  refuse();
}
double sum(ConstTensor) {
  refuse();
}

}  // namespace keel::ops::cuda
