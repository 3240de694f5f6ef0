// Sums over many rows made by several threads, such as a gain's gradient. A thread adds a few rows in fp32 and moves
// these on to sums in double, so that rounding does not grow with the rows; at the end the threads' sums are added in
// their order. The same sizes and thread count give the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/tensor/tensor.h"

namespace keel::ops {

// Grows at first use and stays, so that later calls allocate nothing.
template <class T>
T* grown(std::vector<T>& memory, size_t elements) {
  if (memory.size() < elements) memory.resize(elements);
  return memory.data();
}

class PartialSums {
 public:
  // After how many rows flush() should be called.
  static constexpr int64_t kRows = 64;

  // 12 bytes per element and part; each thread that calls an op keeps its own.
  struct Memory {
    std::vector<float> few;
    std::vector<double> sums;
  };

  // All zero. `memory` must outlive this, and is in use as long.
  PartialSums(Memory& memory, int64_t elements, int parts)
      : elements_(elements), stride_((elements + 15) / 16 * 16), parts_(parts) {
    size_t total = size_t(stride_ * parts);
    few_ = grown(memory.few, total);
    sums_ = grown(memory.sums, total);
    std::fill_n(few_, total, 0.f);
    std::fill_n(sums_, total, 0.0);
  }

  // Where a part adds its rows: [elements].
  float* few(int part) const { return few_ + stride_ * part; }
  void flush(int part) const {
    float* few = few_ + stride_ * part;
    double* sums = sums_ + stride_ * part;
    for (int64_t i = 0; i < elements_; ++i) {
      sums[i] += double(few[i]);
      few[i] = 0;
    }
  }
  // out (fp32, may be undefined) += elements [first, first + its size).
  void add_to(Tensor out, int64_t first) const {
    if (!out.defined()) return;
    for (int64_t i = 0; i < out.elements(); ++i) {
      double total = 0;
      for (int part = 0; part < parts_; ++part) total += sums_[stride_ * part + first + i];
      out.as<float>()[i] += float(total);
    }
  }

 private:
  int64_t elements_;
  int64_t stride_;
  int parts_;
  float* few_;
  double* sums_;
};

}  // namespace keel::ops
