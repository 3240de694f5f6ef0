#include "framework/ops/activation.h"

#include "framework/base/trace.h"
#include "framework/ops/activation_cpu.h"
#include "framework/ops/activation_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

void check(const char* op, ConstTensor narrow, ConstTensor wide, ActivationKind kind) {
  require(narrow.dims() == 2 && wide.dims() == 2, "{}: [n, F] expected, got {} and {}", op, narrow.shape(),
          wide.shape());
  int64_t features = narrow.size(1) * (is_gated(kind) ? 2 : 1);
  require(wide.size(0) == narrow.size(0) && wide.size(1) == features, "{}: {} rows of {} features expected, got {}", op,
          narrow.size(0), features, wide.shape());
  require(narrow.dtype() == wide.dtype(), "{}: element types differ: {} and {}", op, name_of(narrow.dtype()),
          name_of(wide.dtype()));
}

}  // namespace

void activation_forward(Tensor y, ConstTensor x, ActivationKind kind) {
  const Span span("activation_forward");
  check("activation_forward", y, x, kind);
  run_twin(device_of(y, x), cpu::activation_forward, cuda::activation_forward, y, x, kind);
}

void activation_backward(Tensor dx, Tensor y, ConstTensor dy, ConstTensor x, ActivationKind kind) {
  const Span span("activation_backward");
  check("activation_backward", dy, x, kind);
  check("activation_backward", y, x, kind);
  require(dx.shape() == x.shape() && dx.dtype() == x.dtype(), "activation_backward: dx {} {} must be like x {} {}",
          name_of(dx.dtype()), dx.shape(), name_of(x.dtype()), x.shape());
  run_twin(device_of(dx, y, dy, x), cpu::activation_backward, cuda::activation_backward, dx, y, dy, x, kind);
}

}  // namespace keel::ops
