#include "framework/ops/cross_entropy.h"

#include <algorithm>

#include "framework/base/trace.h"
#include "framework/ops/cross_entropy_cpu.h"
#include "framework/ops/cross_entropy_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

void check_column(const char* op, const char* name, const ConstTensor& x, int64_t rows) {
  require(x.defined() && x.shape() == Shape{rows} && x.dtype() == DType::f32 && x.contiguous(),
          "{}: {} must be fp32 [{}], not {} {}", op, name, rows, name_of(x.dtype()), x.shape());
}

void check_statistics(const char* op, const CrossEntropyStatistics& statistics, int64_t rows) {
  check_column(op, "maximum", statistics.maximum, rows);
  check_column(op, "sum_exp", statistics.sum_exp, rows);
  check_column(op, "target_logit", statistics.target_logit, rows);
  check_column(op, "logit_sum", statistics.logit_sum, rows);
}

void check_targets(const char* op, const ConstTensor& targets, int64_t rows, const CrossEntropyOptions& options) {
  require(options.vocabulary > 0, "{}: a vocabulary of {}", op, options.vocabulary);
  require(targets.shape() == Shape{rows} && targets.dtype() == DType::i32 && targets.contiguous(),
          "{}: targets must be int32 [{}], not {} {}", op, rows, name_of(targets.dtype()), targets.shape());
  if (targets.device().kind != DeviceKind::cpu) return;
  const int32_t* ids = targets.as<int32_t>();
  const int32_t* wrong = std::find_if(ids, ids + rows, [&](int32_t id) { return id >= options.vocabulary; });
  if (wrong != ids + rows)
    throw input_error(
        "the data holds token {}, but the model's vocabulary ends at {}: set model.vocabulary to the "
        "tokenizer's size",
        *wrong, options.vocabulary - 1);
}

void check_logits(const char* op, const ConstTensor& logits, const CrossEntropyOptions& options) {
  require(logits.dims() == 2 && logits.dtype() == DType::f32, "{}: logits must be fp32 [n, columns], not {} {}", op,
          name_of(logits.dtype()), logits.shape());
  require(options.first_column >= 0, "{}: the first column is {}", op, options.first_column);
}

}  // namespace

void cross_entropy_statistics(const CrossEntropyStatistics& statistics, Tensor logits, ConstTensor targets,
                              const CrossEntropyOptions& options) {
  const Span span("cross_entropy_statistics");
  const char* op = "cross_entropy_statistics";
  check_logits(op, logits, options);
  check_statistics(op, statistics, logits.size(0));
  check_targets(op, targets, logits.size(0), options);
  run_twin(
      device_of(logits, targets, statistics.maximum, statistics.sum_exp, statistics.target_logit, statistics.logit_sum),
      cpu::cross_entropy_statistics, cuda::cross_entropy_statistics, statistics, logits, targets, options);
}

void cross_entropy_rescale(const CrossEntropyStatistics& statistics, ConstTensor global_maximum) {
  const char* op = "cross_entropy_rescale";
  check_statistics(op, statistics, global_maximum.elements());
  check_column(op, "the global maximum", global_maximum, global_maximum.elements());
  run_twin(device_of(statistics.maximum, statistics.sum_exp, global_maximum), cpu::cross_entropy_rescale,
           cuda::cross_entropy_rescale, statistics, global_maximum);
}

void cross_entropy_loss(Tensor sums, const CrossEntropyStatistics& statistics, ConstTensor targets,
                        const CrossEntropyOptions& options) {
  const char* op = "cross_entropy_loss";
  require(sums.shape() == Shape{4} && sums.dtype() == DType::f64, "{}: sums must be fp64 [4], not {} {}", op,
          name_of(sums.dtype()), sums.shape());
  check_statistics(op, statistics, targets.elements());
  check_targets(op, targets, targets.elements(), options);
  run_twin(
      device_of(targets, sums, statistics.maximum, statistics.sum_exp, statistics.target_logit, statistics.logit_sum),
      cpu::cross_entropy_loss, cuda::cross_entropy_loss, sums, statistics, targets, options);
}

void cross_entropy_gradient(Tensor d_logits, const CrossEntropyGradient& call) {
  const Span span("cross_entropy_gradient");
  const char* op = "cross_entropy_gradient";
  const auto& [logits, statistics, targets, factor, options] = call;
  require_scalar(op, factor, DType::f32);
  check_logits(op, logits, options);
  require(d_logits.shape() == logits.shape(), "{}: d_logits are {}, logits {}", op, d_logits.shape(), logits.shape());
  check_statistics(op, statistics, logits.size(0));
  check_targets(op, targets, logits.size(0), options);
  run_twin(device_of(d_logits, logits, targets, factor, statistics.maximum, statistics.sum_exp, statistics.target_logit,
                     statistics.logit_sum),
           cpu::cross_entropy_gradient, cuda::cross_entropy_gradient, d_logits, call);
}

}  // namespace keel::ops
