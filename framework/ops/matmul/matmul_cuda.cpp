#include "framework/ops/matmul/matmul_cuda.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <vector>

#include "framework/ops/bias_cuda.h"
#include "framework/ops/elementwise_cuda.h"
#include "framework/tensor/cuda_call.h"

// cuBLASLt's matrices lie by columns, ours by rows: what is c = a b here is c^T = b^T a^T there, with the same bytes
// and the factors swapped. An algorithm is chosen once per problem and kept: the first that the library offers and then
// takes.
namespace keel::ops::cuda {
namespace {

void check_cublas(cublasStatus_t status, const char* call,
                  std::source_location where = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  throw Error(ErrorKind::internal, fmt::format("{}: {}", call, cublasLtGetStatusString(status)), where);
}
#define KEEL_CUBLAS(call) check_cublas((call), #call)

constexpr uint64_t kMostWorkspaceBytes = 32 << 20;
constexpr int64_t kBiasOffsetAlignment = 256;
constexpr int kCandidates = 8;

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, Destroy<cublasLtDestroy>>;
using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

cudaDataType type_of(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  KEEL_CUBLAS(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value));
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  KEEL_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

// The largest power of two, up to 256, that divides the address.
uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 256;
  return uint32_t(bits & -bits);
}

// A matrix as it lies in memory: its rows are cuBLASLt's columns.
Layout layout_of(const ConstTensor& matrix) {
  cublasLtMatrixLayout_t layout = nullptr;
  KEEL_CUBLAS(cublasLtMatrixLayoutCreate(&layout, type_of(matrix.dtype()), uint64_t(matrix.size(1)),
                                         uint64_t(matrix.size(0)), std::max(matrix.stride(0), matrix.size(1))));
  return Layout(layout);
}

// Everything that the choice of an algorithm depends on.
using Problem = std::array<int64_t, 18>;

Problem problem_of(const Tensor& c, const ConstTensor& a, const ConstTensor& b, MatmulOptions options,
                   uint32_t bias_alignment) {
  Problem problem{c.device().index, options.transpose_a, options.transpose_b, options.accumulate, bias_alignment};
  auto next = problem.begin() + 5;
  for (const ConstTensor& matrix : {ConstTensor(c), a, b}) {
    *next++ = matrix.size(0) << 1 | int64_t(matrix.dtype() == DType::bf16);
    *next++ = matrix.size(1);
    *next++ = matrix.stride(0);
    *next++ = alignment_of(matrix.data());
  }
  return problem;
}

struct Plan {
  Operation operation;
  Layout a, b, c;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates;  // the first is in use
};

Plan make_plan(cublasLtHandle_t handle, const Tensor& c, const ConstTensor& a, const ConstTensor& b,
               const Problem& problem) {
  cublasLtMatmulDesc_t created = nullptr;
  KEEL_CUBLAS(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Plan plan{Operation(created), layout_of(a), layout_of(b), layout_of(c),
            std::vector<cublasLtMatmulHeuristicResult_t>(kCandidates)};
  const auto operation_of = [](bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, operation_of(problem[2]));
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, operation_of(problem[1]));
  if (problem[4] > 0) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    // Only its alignment counts here.
    set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(problem[4]));
  }
  cublasLtMatmulPreference_t preferred = nullptr;
  KEEL_CUBLAS(cublasLtMatmulPreferenceCreate(&preferred));
  const Preference preference(preferred);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspaceBytes);
  // Partial sums are added from the workspace, in one order.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(b.data()));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(a.data()));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c.data()));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(c.data()));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, plan.operation.get(), plan.b.get(), plan.a.get(), plan.c.get(),
                                     plan.c.get(), preference.get(), kCandidates, plan.candidates.data(), &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");  // there is none
  plan.candidates.resize(size_t(count));
  std::erase_if(plan.candidates, [](const auto& one) { return one.state != CUBLAS_STATUS_SUCCESS; });
  return plan;
}

// Of the calling thread: one handle per device, one plan per problem. Both live as long as the thread.
struct Library {
  std::map<int, Handle> handles;
  std::map<Problem, Plan> plans;

  cublasLtHandle_t handle(Device device) {
    Handle& own = handles[device.index];
    if (!own) {
      cublasLtHandle_t created = nullptr;
      KEEL_CUBLAS(cublasLtCreate(&created));
      own.reset(created);
    }
    return own.get();
  }
};

// Nothing to add up.
void clear(const Tensor& c) {
  for (int64_t row = 0; row < c.size(0); ++row)
    KEEL_CUDA(cudaMemsetAsync(c.slice(0, row, row + 1).data(), 0, size_t(c.size(1) * bytes_of(c.dtype())),
                              keel::cuda::current_stream(c.device())));
}

struct Call {
  cublasLtHandle_t handle;
  Tensor c;
  ConstTensor a, b, bias;
  MatmulOptions options;

  // The epilogue takes a bias in c's type, and adds it before it rounds. What bf16 loses of the bias comes after: where
  // the product cancels the bias, neither rounding is larger than the sum's own.
  bool converts_bias() const { return bias.defined() && bias.dtype() != c.dtype(); }
  uint32_t bias_alignment() const {
    if (!bias.defined()) return 0;
    return converts_bias() ? uint32_t(kBiasOffsetAlignment) : alignment_of(bias.data());
  }
  // All that may keep the library from taking it.
  std::string text() const {
    const auto matrix = [](const ConstTensor& one, bool transposed) {
      return fmt::format("{} {}{} (rows {} elements apart, aligned to {} bytes)", name_of(one.dtype()), one.shape(),
                         transposed ? " transposed" : "", one.stride(0), alignment_of(one.data()));
    };
    return fmt::format("{} from {} and {}{}", matrix(c, false), matrix(a, options.transpose_a),
                       matrix(b, options.transpose_b), bias.defined() ? " and a bias" : "");
  }
};

cublasStatus_t start(const Plan& plan, const cublasLtMatmulHeuristicResult_t& candidate, const Call& call) {
  const Device device = call.c.device();
  const cudaStream_t stream = keel::cuda::current_stream(device);
  const auto workspace_bytes = int64_t(candidate.workspaceSize);
  const int64_t bias_bytes = call.converts_bias() ? call.c.size(1) * bytes_of(call.c.dtype()) : 0;
  const int64_t bias_offset =
      (workspace_bytes + kBiasOffsetAlignment - 1) / kBiasOffsetAlignment * kBiasOffsetAlignment;
  std::byte* workspace =
      bias_offset + bias_bytes > 0 ? keel::cuda::workspace(device, bias_offset + bias_bytes) : nullptr;
  const void* bias_data = call.bias.data();
  if (call.converts_bias()) {
    const Tensor converted(workspace + bias_offset, call.bias.shape(), call.c.dtype(), device);
    convert(converted, call.bias);
    bias_data = converted.data();
  }
  if (call.bias.defined()) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_data);
  keel::cuda::limit_run_ahead(stream);
  const float one = 1, beta = call.options.accumulate ? 1 : 0;
  return cublasLtMatmul(call.handle, plan.operation.get(), &one, call.b.data(), plan.b.get(), call.a.data(),
                        plan.a.get(), &beta, call.c.data(), plan.c.get(), call.c.data(), plan.c.get(), &candidate.algo,
                        workspace, size_t(workspace_bytes), stream);
}

// Whether nothing was started, and another candidate may be taken. An invalid value is a mistake of ours.
bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
}

// False where the library takes no candidate. Those that it refuses are forgotten, so that what a graph records later
// (tensor/graph.h) is started at once.
bool start(Plan& plan, const Call& call) {
  while (!plan.candidates.empty()) {
    const cublasStatus_t status = start(plan, plan.candidates.front(), call);
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    require(is_refusal(status), "cublasLtMatmul: {}: {}", cublasLtGetStatusString(status), call.text());
    plan.candidates.erase(plan.candidates.begin());
  }
  return false;
}

}  // namespace

void product(Tensor c, ConstTensor a, ConstTensor b, MatmulOptions options, ConstTensor bias) {
  if (c.elements() == 0) return;
  if (a.elements() == 0) {
    require(!bias.defined(), "a bias on a product over 0 columns");
    return options.accumulate ? void() : clear(c);
  }
  thread_local Library library;
  const Call call{library.handle(c.device()), c, a, b, bias, options};
  const Problem problem = problem_of(c, a, b, options, call.bias_alignment());
  auto found = library.plans.find(problem);
  if (found == library.plans.end())
    found = library.plans.emplace(problem, make_plan(call.handle, c, a, b, problem)).first;
  if (start(found->second, call)) return call.converts_bias() ? add_bias_remainder(c, bias) : void();
  if (!bias.defined()) throw Error(ErrorKind::internal, "cuBLASLt has no algorithm for " + call.text());
  product(c, a, b, options, {});
  add_bias(c, bias);  // one rounding more
}

}  // namespace keel::ops::cuda
