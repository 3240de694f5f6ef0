#include "framework/tensor/copy.h"

#include <cstring>

#include "framework/tensor/copy_cuda.h"
#include "framework/tensor/wait_guard.h"

namespace keel {
namespace {

void check(const Tensor& to, const ConstTensor& from) {
  require(to.shape() == from.shape() && to.dtype() == from.dtype(), "copy: {} {} from {} {}", name_of(to.dtype()),
          to.shape(), name_of(from.dtype()), from.shape());
  require(to.dims() == 2 || (to.contiguous() && from.contiguous()), "copy: strided tensors have two dims, not {}",
          to.shape());
  require(to.device().is_meta() == from.device().is_meta(), "copy: from {} to {}", from.device().text(),
          to.device().text());
}

// Rows of bytes: one row where both are contiguous.
CopyRows rows_of(const Tensor& to, const ConstTensor& from) {
  const int64_t element = bytes_of(to.dtype());
  if (to.contiguous() && from.contiguous()) return {to.data(), from.data(), 1, to.size_bytes(), 0, 0};
  return {to.data(), from.data(), to.size(0), to.size(1) * element, to.stride(0) * element, from.stride(0) * element};
}

void copy_on_cpu(const CopyRows& rows) {
  for (int64_t row = 0; row < rows.rows; ++row)
    std::memcpy(static_cast<std::byte*>(rows.to) + row * rows.to_stride_bytes,
                static_cast<const std::byte*>(rows.from) + row * rows.from_stride_bytes, size_t(rows.row_bytes));
}

}  // namespace

void copy_async(Tensor to, ConstTensor from, const Stream& stream) {
  check(to, from);
  if (to.device().is_meta() || to.elements() == 0) return;
  const CopyRows rows = rows_of(to, from);
  const bool on_cpu = to.device().kind == DeviceKind::cpu && from.device().kind == DeviceKind::cpu;
  if (on_cpu) copy_on_cpu(rows);
  if (!on_cpu) cuda::copy_rows(rows, stream.device(), stream.native());
}

void zero(Tensor x) {
  require(x.contiguous(), "zero: {} is not contiguous", x.shape());
  if (x.device().is_meta() || x.elements() == 0) return;
  if (x.device().kind == DeviceKind::cpu) std::memset(x.data(), 0, size_t(x.size_bytes()));
  if (x.device().kind == DeviceKind::cuda)
    cuda::zero(x.data(), x.size_bytes(), x.device(), Stream::current(x.device()).native());
}

void copy(Tensor to, ConstTensor from) {
  const bool from_gpu = from.device().kind == DeviceKind::cuda;
  const Stream& stream = Stream::current(from_gpu ? from.device() : to.device());
  const bool waits = from_gpu != (to.device().kind == DeviceKind::cuda);
  if (waits && WaitGuard::any()) stream.synchronize();  // a copy of ordinary memory waits for the stream unguarded
  copy_async(to, from, stream);
  if (waits) stream.synchronize();
}

HostTensor::HostTensor(ConstTensor tensor)
    : there_(const_cast<void*>(tensor.data()), tensor.shape(), tensor.dtype(), tensor.device()) {
  require(tensor.contiguous(), "{} is not contiguous", tensor.shape());
  here_ = there_;
  if (tensor.device().kind != DeviceKind::cuda) return;
  copy_ = OwnedTensor(tensor.shape(), tensor.dtype());
  here_ = copy_;
  copy(here_, there_);
}

void HostTensor::put_back() const {
  if (copy_.tensor.defined()) copy(there_, here_);
}

}  // namespace keel
