// The CPU twins of cross_entropy.h; arguments are checked already.
#pragma once

#include "framework/ops/cross_entropy.h"

namespace keel::ops::cpu {

void cross_entropy_statistics(const CrossEntropyStatistics& statistics, Tensor logits, ConstTensor targets,
                              const CrossEntropyOptions& options);
void cross_entropy_rescale(const CrossEntropyStatistics& statistics, ConstTensor global_maximum);
void cross_entropy_loss(Tensor sums, const CrossEntropyStatistics& statistics, ConstTensor targets,
                        const CrossEntropyOptions& options);
void cross_entropy_gradient(Tensor d_logits, const CrossEntropyGradient& call);

}  // namespace keel::ops::cpu
