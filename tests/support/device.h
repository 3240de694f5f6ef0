// The device under test. A test binary that is written with these runs on the CPU and, with KEEL_TEST_DEVICE=cuda in
// the environment (ctest: NAME_cuda), on a GPU or its stand-in, one for each rank: tensors are made there, values come
// and go by copies.
#pragma once

#include <cstdlib>
#include <string_view>
#include <vector>

#include "framework/tensor/buffer.h"
#include "framework/tensor/copy.h"
#include "framework/tensor/gpu.h"
#include "framework/tensor/wait_guard.h"

namespace keel::testing {

inline Device test_device() {
  const char *name = std::getenv("KEEL_TEST_DEVICE"), *rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  if (!name || std::string_view(name) != "cuda") return {};
  return {DeviceKind::cuda, rank ? std::atoi(rank) : 0};
}

// Whether that is no GPU but its stand-in, which does nothing before somebody waits.
inline bool on_stand_in() {
  const Device device = test_device();
  return device.kind == DeviceKind::cuda && cuda::describe_gpu(device.index).name.find("stand-in") != std::string::npos;
}

// Whether it is a real GPU: what would take minutes on a CPU, or more memory than tests may take, runs there only.
inline bool on_hardware() {
  return test_device().kind == DeviceKind::cuda && !on_stand_in();
}

// How often this thread has asked for its GPU.
class CountedWaits : WaitGuard {
 public:
  int count = 0;

 private:
  void look() override { ++count; }
  void unwind() noexcept override {}
  bool at_rest() override { return true; }
};

// Zero-filled, on the device under test.
struct DeviceTensor : OwnedTensor {
  DeviceTensor() = default;
  DeviceTensor(const Shape& shape, DType dtype) : OwnedTensor(shape, dtype, test_device()) {}
};

// The bytes from a view's first element to its last, on the CPU: the view's own, or a copy that put_back() returns.
class OnHost {
 public:
  explicit OnHost(const ConstTensor& tensor) : data_(const_cast<void*>(tensor.data())) {
    if (tensor.device().kind != DeviceKind::cuda || tensor.elements() == 0) return;
    int64_t span = 1;
    for (int dim = 0; dim < tensor.dims(); ++dim) span += (tensor.size(dim) - 1) * tensor.stride(dim);
    there_ = Tensor(data_, {span}, tensor.dtype(), tensor.device());
    here_ = OwnedTensor({span}, tensor.dtype());
    copy(here_, there_);
    data_ = here_.tensor.data();
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void put_back() const {
    if (there_.defined()) copy(there_, here_);
  }

 private:
  void* data_;
  Tensor there_;
  OwnedTensor here_;
};

// A vector's values on the device under test.
template <class T>
DeviceTensor device_tensor(const std::vector<T>& values) {
  DeviceTensor tensor({int64_t(values.size())}, dtype_of<T>());
  copy(tensor, ConstTensor(values.data(), tensor.tensor.shape(), dtype_of<T>()));
  return tensor;
}

// The elements of a contiguous tensor.
template <class T = float>
std::vector<T> host_values(const ConstTensor& tensor) {
  const HostTensor host(tensor);
  const T* values = host.tensor().as<T>();
  return {values, values + tensor.elements()};
}

// Sets one element of a contiguous tensor.
template <class T>
void set_element(const Tensor& tensor, int64_t index, T value) {
  const OnHost host(tensor);
  host.as<T>()[index] = value;
  host.put_back();
}

}  // namespace keel::testing
