#include "framework/ops/matmul/matmul.h"

#include "framework/base/trace.h"
#include "framework/ops/elementwise_cpu.h"
#include "framework/ops/matmul/matmul_cpu.h"
#include "framework/ops/matmul/matmul_cuda.h"
#include "framework/tensor/dispatch.h"

namespace keel::ops {
namespace {

using onednn::matrix_of;

void require_matrix(const char* op, const ConstTensor& tensor) {
  require(tensor.dims() == 2, "{}: {} is no matrix", op, tensor.shape());
  require(tensor.dtype() == DType::f32 || tensor.dtype() == DType::bf16, "{}: a {} matrix", op,
          name_of(tensor.dtype()));
}

void require_vector(const char* op, const ConstTensor& tensor, int64_t size) {
  require(tensor.dims() == 1 && tensor.size(0) == size, "{}: a bias of shape {} for {} outputs", op, tensor.shape(),
          size);
  require(tensor.dtype() == DType::f32, "{}: a {} bias, must be fp32", op, name_of(tensor.dtype()));
}

struct Sizes {
  int64_t rows, columns;
};

// c [rows, columns] = a [rows, inner] b [inner, columns].
void require_product(const char* op, const ConstTensor& c, Sizes a, Sizes b) {
  require(a.columns == b.rows, "{}: [{}, {}] times [{}, {}]: inner sizes differ", op, a.rows, a.columns, b.rows,
          b.columns);
  require(c.size(0) == a.rows && c.size(1) == b.columns, "{}: [{}, {}] times [{}, {}] is not {}", op, a.rows, a.columns,
          b.rows, b.columns, c.shape());
}

void require_types(const char* op, const ConstTensor& c, const ConstTensor& a, DType b) {
  require(a.dtype() == b, "{}: {} times {}", op, name_of(a.dtype()), name_of(b));
  require(c.dtype() == a.dtype() || c.dtype() == DType::f32, "{}: {} from {} factors", op, name_of(c.dtype()),
          name_of(a.dtype()));
}

}  // namespace

void matmul(Tensor c, ConstTensor a, ConstTensor b, MatmulOptions options) {
  for (const ConstTensor& tensor : {ConstTensor(c), a, b}) require_matrix("matmul", tensor);
  Sizes of_a{a.size(0), a.size(1)}, of_b{b.size(0), b.size(1)};
  if (options.transpose_a) std::swap(of_a.rows, of_a.columns);
  if (options.transpose_b) std::swap(of_b.rows, of_b.columns);
  require_product("matmul", c, of_a, of_b);
  require_types("matmul", c, a, b.dtype());
  require(!options.accumulate || c.dtype() == DType::f32, "matmul: accumulation into {}, must be fp32",
          name_of(c.dtype()));
  const DeviceKind device = device_of(c, a, b);
  if (device == DeviceKind::cuda) return cuda::product(c, a, b, options, {});
  if (device != DeviceKind::cpu) return;
  cpu::product({matrix_of(c), options.transpose_a ? transposed(matrix_of(a)) : matrix_of(a),
                options.transpose_b ? transposed(matrix_of(b)) : matrix_of(b), nullptr, options.accumulate});
}

struct PackedWeight::Forms {
  ConstTensor weight;         // W [N, K]
  Buffer widened;             // where bf16 products are not native: W's values in fp32
  onednn::Blocked of_output;  // W^T [K, N], the second factor of x W^T
  onednn::Blocked of_input;   // W [N, K], the second factor of dy W

  // What the products read as W.
  onednn::Matrix matrix() const {
    return matrix_of(widened.size_bytes() ? widened.tensor(0, weight.shape(), DType::f32) : weight);
  }
};

PackedWeight::PackedWeight() : forms_(std::make_unique<Forms>()) {}
PackedWeight::~PackedWeight() = default;
PackedWeight::PackedWeight(PackedWeight&&) noexcept = default;
PackedWeight& PackedWeight::operator=(PackedWeight&&) noexcept = default;

void PackedWeight::refresh(ConstTensor weight, const WideRows& wide) {
  require_matrix("PackedWeight", weight);
  forms_->weight = weight;
  bool widen = weight.dtype() == DType::bf16 && weight.device().kind != DeviceKind::cuda && !cpu::bf16_support().native;
  int64_t widened_bytes = widen ? weight.elements() * bytes_of(DType::f32) : 0;
  if (forms_->widened.size_bytes() != widened_bytes) forms_->widened = Buffer(weight.device(), widened_bytes);
  if (weight.device().kind == DeviceKind::cuda || weight.elements() == 0) return;
  if (widen && weight.device().is_meta()) return;
  if (widen) return cpu::convert(forms_->widened.tensor(0, weight.shape(), DType::f32), weight);
  const auto stride = [&](int64_t columns, bool wide_rows) {
    return wide_rows ? Arena::row_stride(columns, weight.dtype()) : columns;
  };
  const int64_t N = weight.size(0), K = weight.size(1);
  forms_->of_output.assign_preferred(transposed(matrix_of(weight)), {stride(K, wide.x), stride(N, wide.y)});
  forms_->of_input.assign_preferred(matrix_of(weight), {stride(N, wide.dy), stride(K, wide.dx)});
}

int64_t PackedWeight::size_bytes() const {
  return forms_->widened.size_bytes() + forms_->of_output.size_bytes() + forms_->of_input.size_bytes();
}

int64_t PackedWeight::rows() const {
  return forms_->weight.size(0);
}

int64_t PackedWeight::columns() const {
  return forms_->weight.size(1);
}

const PackedWeight::Forms& PackedWeight::forms() const {
  require(forms_->weight.defined(), "a product with a weight that was never refreshed");
  return *forms_;
}

void linear_forward(Tensor y, ConstTensor x, const PackedWeight& weight, ConstTensor bias) {
  const Span span("linear_forward");
  for (const ConstTensor& tensor : {ConstTensor(y), x}) require_matrix("linear_forward", tensor);
  const PackedWeight::Forms& forms = weight.forms();
  require_product("linear_forward", y, {x.size(0), x.size(1)}, {weight.columns(), weight.rows()});
  require_types("linear_forward", y, x, forms.weight.dtype());
  if (bias.defined()) require_vector("linear_forward", bias, weight.rows());
  const DeviceKind device = device_of(y, x, forms.weight, bias);
  if (device == DeviceKind::cuda) return cuda::product(y, x, forms.weight, {.transpose_b = true}, bias);
  if (device != DeviceKind::cpu) return;
  const float* bias_data = bias.defined() ? bias.as<float>() : nullptr;
  cpu::product({matrix_of(y), matrix_of(x), transposed(forms.matrix()), bias_data, false}, &forms.of_output);
}

void linear_backward_input(Tensor dx, ConstTensor dy, const PackedWeight& weight) {
  const Span span("linear_backward_input");
  for (const ConstTensor& tensor : {ConstTensor(dx), dy}) require_matrix("linear_backward_input", tensor);
  const PackedWeight::Forms& forms = weight.forms();
  require_product("linear_backward_input", dx, {dy.size(0), dy.size(1)}, {weight.rows(), weight.columns()});
  require_types("linear_backward_input", dx, dy, forms.weight.dtype());
  const DeviceKind device = device_of(dx, dy, forms.weight);
  if (device == DeviceKind::cuda) return cuda::product(dx, dy, forms.weight, {}, {});
  if (device != DeviceKind::cpu) return;
  cpu::product({matrix_of(dx), matrix_of(dy), forms.matrix(), nullptr, false}, &forms.of_input);
}

void linear_backward_weight(Tensor d_weight, ConstTensor dy, ConstTensor x) {
  const Span span("linear_backward_weight");
  require(d_weight.dtype() == DType::f32, "linear_backward_weight: a {} gradient, must be fp32",
          name_of(d_weight.dtype()));
  matmul(d_weight, dy, x, {.transpose_a = true, .transpose_b = false, .accumulate = true});
}

void linear_backward_bias(Tensor d_bias, ConstTensor dy) {
  const Span span("linear_backward_bias");
  require_matrix("linear_backward_bias", dy);
  require_vector("linear_backward_bias", d_bias, dy.size(1));
  const DeviceKind device = device_of(d_bias, dy);
  if (device == DeviceKind::cuda) return cuda::add_column_sums(d_bias, dy);
  if (device != DeviceKind::cpu) return;
  cpu::add_column_sums(d_bias.as<float>(), {const_cast<void*>(dy.data()), dy.stride(0), dy.dtype()}, dy.size(0),
                       dy.size(1));
}

bool bf16_products_are_native() {
  return cpu::bf16_support().native;
}

std::string product_backend() {
  const onednn::Bf16Support& support = cpu::bf16_support();
  return onednn::version_and_instructions() +
         (support.native ? "" : "; bf16 products run as fp32 products of rounded values: " + support.reason);
}

}  // namespace keel::ops
