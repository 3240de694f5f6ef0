// The stand-in for cuBLASLt: the calls in use, refused where the real library refuses them, computed by plain loops
// with sums in fp32. Stricter than the real one where a mistake could pass there by luck: an algorithm runs only the
// problem that it was found for, at the alignment that was promised, with the workspace that it asked for.
#include <cublasLt.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "tests/support/cuda_host/memory.h"
#include "tests/support/cuda_host/streams.h"

namespace keel::cuda_host {
namespace {

struct Layout : cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t stride;  // between columns
};

struct Operation : cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

struct Preference : cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace_bytes = 0;
  uint32_t reduction_schemes = ~0u;
  uint32_t alignments[4] = {256, 256, 256, 256};  // a, b, c, d
};

const Layout* as_layout(cublasLtMatrixLayout_t layout) {
  return static_cast<const Layout*>(layout);
}
const Operation* as_operation(cublasLtMatmulDesc_t operation) {
  return static_cast<const Operation*>(operation);
}

// What cublasLtMatmulAlgo_t holds here.
struct Algorithm {
  uint64_t problem;
  uint32_t number;  // among those that the heuristic offers
  uint32_t alignments[4];
  uint32_t workspace_bytes;
  uint32_t bias_alignment;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

constexpr int kOffered = 3;

// What a test wants refused (README.md).
bool refuses(std::string_view what) {
  const char* wanted = std::getenv("KEEL_CUDA_HOST_REFUSES");
  return wanted && wanted == what;
}

int64_t width_of(cudaDataType type) {
  return type == CUDA_R_16BF ? 2 : 4;
}

struct Call {
  const Operation* operation;
  const Layout *a, *b, *c, *d;

  bool transposes(const Layout* factor) const {
    return (factor == a ? operation->transpose_a : operation->transpose_b) == CUBLAS_OP_T;
  }
  uint64_t inner() const { return transposes(a) ? a->rows : a->columns; }
  uint64_t number() const {
    uint64_t hash = 14695981039346656037u;
    const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
    for (const Layout* layout : {a, b, c, d})
      for (uint64_t value : {uint64_t(layout->type), layout->rows, layout->columns, uint64_t(layout->stride)})
        mix(value);
    for (int value : {int(operation->transpose_a), int(operation->transpose_b), int(operation->epilogue)})
      mix(uint64_t(value));
    return hash;
  }
};

cublasStatus_t check(const Call& call) {
  if (!call.operation || !call.a || !call.b || !call.c || !call.d) return CUBLAS_STATUS_INVALID_VALUE;
  for (const Layout* layout : {call.a, call.b, call.c, call.d})
    if (layout->rows == 0 || layout->columns == 0 || layout->stride < int64_t(layout->rows))
      return CUBLAS_STATUS_INVALID_VALUE;
  const bool at = call.transposes(call.a), bt = call.transposes(call.b);
  const uint64_t rows = at ? call.a->columns : call.a->rows, columns = bt ? call.b->rows : call.b->columns;
  const uint64_t inner_of_b = bt ? call.b->columns : call.b->rows;
  if (inner_of_b != call.inner() || call.d->rows != rows || call.d->columns != columns)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (call.c->rows != rows || call.c->columns != columns) return CUBLAS_STATUS_INVALID_VALUE;
  const bool types = call.a->type == call.b->type && call.c->type == call.d->type &&
                     (call.a->type == CUDA_R_32F || call.a->type == CUDA_R_16BF) &&
                     (call.d->type == CUDA_R_32F || call.d->type == call.a->type);
  const bool sums = call.operation->compute == CUBLAS_COMPUTE_32F && call.operation->scale == CUDA_R_32F;
  return types && sums ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

float value_at(const void* data, cudaDataType type, int64_t index) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[index];
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]);
}

struct Pointers {
  const void *a, *b, *c;
  void* d;
  const void* bias;
  float alpha, beta;
};

// By value: descriptors may be changed or destroyed before the stream gets here.
struct Multiply {
  Operation operation;
  Layout a, b, d;
  int64_t stride_c;
  Pointers at;

  void operator()() const {
    DeviceAccess access;
    const bool ta = operation.transpose_a == CUBLAS_OP_T, tb = operation.transpose_b == CUBLAS_OP_T;
    const auto rows = int64_t(d.rows), inner = int64_t(ta ? a.rows : a.columns);
    std::vector<float> left(size_t(rows * inner)), sums;  // [inner, rows]
    for (int64_t k = 0; k < inner; ++k)
      for (int64_t i = 0; i < rows; ++i)
        left[size_t(k * rows + i)] = value_at(at.a, a.type, ta ? i * a.stride + k : k * a.stride + i);
    for (int64_t j = 0; j < int64_t(d.columns); ++j) {
      sums.assign(size_t(rows), 0);
      for (int64_t k = 0; k < inner; ++k) {
        const float right = value_at(at.b, b.type, tb ? k * b.stride + j : j * b.stride + k);
        for (int64_t i = 0; i < rows; ++i) sums[size_t(i)] += left[size_t(k * rows + i)] * right;
      }
      for (int64_t i = 0; i < rows; ++i) {
        float value = at.alpha * sums[size_t(i)];
        if (at.beta != 0) value += at.beta * value_at(at.c, d.type, j * stride_c + i);
        if (operation.epilogue == CUBLASLT_EPILOGUE_BIAS) value += value_at(at.bias, d.type, i);
        if (d.type == CUDA_R_32F)
          static_cast<float*>(at.d)[j * d.stride + i] = value;
        else
          static_cast<__nv_bfloat16*>(at.d)[j * d.stride + i] = __float2bfloat16_rn(value);
      }
    }
  }
};

// The largest power of two, up to 256, that divides the address.
uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 256;
  return uint32_t(bits & -bits);
}
bool is_aligned(const void* address, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

template <class T>
cublasStatus_t copy_attribute(T& to, const void* from, size_t size_bytes) {
  if (!from || size_bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace keel::cuda_host

using namespace keel::cuda_host;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  drain_all();  // as the real one waits for the device
  delete reinterpret_cast<char*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_INVALID_VALUE) return "CUBLAS_STATUS_INVALID_VALUE";
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return "CUBLAS_STATUS_NOT_SUPPORTED";
  return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_EXECUTION_FAILED";
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  *layout = new Layout{{}, type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete static_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  auto* created = new Operation{};
  created->compute = compute;
  created->scale = scale;
  *operation = created;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete static_cast<Operation*>(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size_bytes) {
  auto* own = static_cast<Operation*>(operation);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return copy_attribute(own->transpose_a, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return copy_attribute(own->transpose_b, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return copy_attribute(own->epilogue, value, size_bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return copy_attribute(own->bias, value, size_bytes);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new Preference{};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete static_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t size_bytes) {
  auto* own = static_cast<Preference*>(preference);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    return copy_attribute(own->workspace_bytes, value, size_bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    return copy_attribute(own->reduction_schemes, value, size_bytes);
  const int factor = int(attribute) - int(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
  if (factor < 0 || factor > 3) return CUBLAS_STATUS_NOT_SUPPORTED;
  return copy_attribute(own->alignments[factor], value, size_bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  if (!handle || !preference || requested < 1 || !results || !count) return CUBLAS_STATUS_INVALID_VALUE;
  const Call call{as_operation(operation), as_layout(a), as_layout(b), as_layout(c), as_layout(d)};
  const cublasStatus_t status = check(call);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto* wanted = static_cast<const Preference*>(preference);
  const bool biased = call.operation->epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (refuses("products") || (biased && refuses("biases"))) return CUBLAS_STATUS_NOT_SUPPORTED;
  *count = std::min(requested, kOffered);
  for (int i = 0; i < *count; ++i) {
    // Long sums are split and want a workspace; an odd size, so that nobody rounds it.
    const uint64_t workspace_bytes =
        call.inner() >= 100 ? std::min<uint64_t>(wanted->workspace_bytes, 1000 + 8 * uint64_t(i)) : 0;
    Algorithm algorithm{call.number(), uint32_t(i), {}, uint32_t(workspace_bytes), alignment_of(call.operation->bias)};
    std::copy_n(wanted->alignments, 4, algorithm.alignments);
    results[i] = {};
    std::memcpy(&results[i].algo, &algorithm, sizeof algorithm);
    results[i].workspaceSize = workspace_bytes;
    results[i].state = i == 0 && refuses("states") ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t layout_a, const void* b, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void* c, cublasLtMatrixLayout_t layout_c, void* d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Call call{as_operation(operation), as_layout(layout_a), as_layout(layout_b), as_layout(layout_c),
                  as_layout(layout_d)};
  const cublasStatus_t status = check(call);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (!handle || !alpha || !beta || !a || !b || !c || !d || !algo) return CUBLAS_STATUS_INVALID_VALUE;
  Algorithm algorithm;
  std::memcpy(&algorithm, algo, sizeof algorithm);
  if (algorithm.problem != call.number()) return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm.number == 0 && refuses("states")) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (algorithm.number + 1 < kOffered && refuses("calls")) return CUBLAS_STATUS_NOT_SUPPORTED;
  const void* addresses[] = {a, b, c, d};
  const Layout* layouts[] = {call.a, call.b, call.c, call.d};
  for (int i = 0; i < 4; ++i)
    if (!is_aligned(addresses[i], std::max<uint64_t>(algorithm.alignments[i], uint64_t(width_of(layouts[i]->type)))))
      return CUBLAS_STATUS_INVALID_VALUE;
  if (workspace_bytes < algorithm.workspace_bytes || !is_aligned(workspace, 256)) return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm.workspace_bytes > 0 && !workspace) return CUBLAS_STATUS_INVALID_VALUE;
  // Out of place where the layouts differ.
  if (c == d && call.c->stride != call.d->stride) return CUBLAS_STATUS_INVALID_VALUE;
  const bool biased = call.operation->epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (!biased && call.operation->epilogue != CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (biased && refuses("bias calls")) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (biased && (!call.operation->bias || !is_aligned(call.operation->bias, algorithm.bias_alignment)))
    return CUBLAS_STATUS_INVALID_VALUE;
  const Pointers pointers{
      a, b, c, d, call.operation->bias, *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
  Multiply multiply{*call.operation, *call.a, *call.b, *call.d, call.c->stride, pointers};
  // What lies in the workspace afterwards is nobody's business: it is spoiled.
  return enqueue(stream,
                 [multiply, workspace, bytes = algorithm.workspace_bytes] {
                   multiply();
                   DeviceAccess access;
                   if (bytes > 0) std::memset(workspace, 0xab, bytes);
                 }) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
