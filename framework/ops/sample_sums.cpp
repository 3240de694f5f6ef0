#include "framework/ops/sample_sums.h"

#include "framework/base/trace.h"
#include "framework/ops/sample_sums_cpu.h"
#include "framework/ops/sample_sums_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {

void add_moments(Tensor sums, ConstTensor x, float outlier) {
  const Span span("add_moments");
  require(sums.shape() == Shape{4} && sums.dtype() == DType::f32, "add_moments: sums {} {}, must be fp32 [4]",
          name_of(sums.dtype()), sums.shape());
  require(x.contiguous(), "add_moments: {} is not contiguous", x.shape());
  run_twin(device_of(sums, x), cpu::add_moments, cuda::add_moments, sums, x, outlier);
}

void add_parallel_pairs(Tensor parallel, Tensor pairs, const ParallelSample& x) {
  const Span span("add_parallel_pairs");
  const ConstTensor &q = x.q, &k = x.k;
  require(q.dims() == 3 && k.dims() == 3 && q.size(0) == k.size(0) && q.size(2) == k.size(2) && q.dtype() == k.dtype(),
          "add_parallel_pairs: {} {} against {} {}", name_of(q.dtype()), q.shape(), name_of(k.dtype()), k.shape());
  require(q.size(1) % k.size(1) == 0 && q.contiguous() && k.contiguous(), "add_parallel_pairs: {} against {}",
          q.shape(), k.shape());
  require(parallel.shape() == Shape{q.size(1)} && parallel.dtype() == DType::f32,
          "add_parallel_pairs: {} {} for {} heads", name_of(parallel.dtype()), parallel.shape(), q.size(1));
  require(pairs.shape() == Shape{1} && pairs.dtype() == DType::f32, "add_parallel_pairs: pairs {} {}, must be fp32 [1]",
          name_of(pairs.dtype()), pairs.shape());
  require(!x.first_key.defined() || (x.first_key.shape() == Shape{q.size(0)} && x.first_key.dtype() == DType::i32),
          "add_parallel_pairs: first keys of another number of rows than {}", q.size(0));
  require(x.queries >= 1 && x.queries <= q.size(0), "add_parallel_pairs: {} queries of {} rows", x.queries, q.size(0));
  require(x.most_keys >= 1, "add_parallel_pairs: {} keys of a query", x.most_keys);
  run_twin(device_of(parallel, pairs, q, k), cpu::add_parallel_pairs, cuda::add_parallel_pairs, parallel, pairs, x);
}

}  // namespace keel::ops
