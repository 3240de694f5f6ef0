#include "framework/ops/matmul/onednn.h"

#include <omp.h>

#include <array>
#include <cstdlib>
#include <oneapi/dnnl/dnnl.hpp>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "framework/ops/matmul/onednn_version.h"
#include "framework/ops/support/cpu_traits.h"

namespace keel::ops::onednn {

using dnnl::memory;

struct Blocked::Layout {
  memory::desc desc;
  memory from, to;
  dnnl::reorder reorder;
};

namespace {

memory::data_type type_of(DType dtype) {
  require(dtype == DType::f32 || dtype == DType::bf16, "no products of {}", name_of(dtype));
  return dtype == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// A stride along a dim of size 1 is never used, but oneDNN reads leading dimensions from it: give it a plain value.
Matrix plain_strides(Matrix matrix) {
  if (matrix.columns == 1 && matrix.row_stride == 1) matrix.column_stride = matrix.rows;
  if (matrix.columns == 1 && matrix.row_stride != 1) matrix.column_stride = 1;
  if (matrix.rows == 1 && matrix.column_stride == 1) matrix.row_stride = matrix.columns;
  if (matrix.rows == 1 && matrix.column_stride != 1) matrix.row_stride = 1;
  return matrix;
}

memory::desc desc_of(const Matrix& matrix) {
  return {{matrix.rows, matrix.columns}, type_of(matrix.dtype), {matrix.row_stride, matrix.column_stride}};
}

using Key = std::array<int64_t, 12>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 14695981039346656037ull;  // FNV-1a, by words
    for (int64_t word : key) hash = (hash ^ uint64_t(word)) * 1099511628211ull;
    return size_t(hash ^ hash >> 29);
  }
};

// A primitive and its arguments, whose addresses are set before each run. No primitive: oneDNN has none.
struct Compiled {
  memory::desc b_desc;
  dnnl::matmul primitive;
  bool is_reference = false;
  memory a, b, c, bias;
  std::vector<dnnl_exec_arg_t> arguments;

  explicit operator bool() const { return primitive.get(true) != nullptr; }
};

// One per thread: oneDNN's streams and our memory objects must not be shared.
struct Session {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::unordered_map<Key, Compiled, KeyHash> compiled;
  std::unordered_map<Key, memory::desc, KeyHash> preferred;  // layouts of weights: layers are alike
};

Session& session() {
  thread_local Session session;
  return session;
}

template <class F>
auto checked(std::string_view what, F&& f) {
  try {
    return f();
  } catch (const dnnl::error& error) {
    throw Error(ErrorKind::internal, fmt::format("oneDNN: {}: {} (status {})", what, error.what(), int(error.status)));
  }
}

// Through the C interface: the C++ one builds such an array at each run.
void execute(const dnnl::primitive& primitive, std::span<const dnnl_exec_arg_t> arguments) {
  Session& here = session();
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive.get(), here.stream.get(), int(arguments.size()), arguments.data()),
      "could not execute a primitive");
  here.stream.wait();
}

// Whoever tells oneDNN which instructions to use is obeyed.
bool instructions_were_chosen() {
  return std::getenv("DNNL_MAX_CPU_ISA") != nullptr || std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr;
}

// Of the same sizes, strides and type.
bool alike(const Matrix& a, const Matrix& b) {
  return a.rows == b.rows && a.columns == b.columns && a.row_stride == b.row_stride &&
         a.column_stride == b.column_stride && a.dtype == b.dtype;
}

Key key_of(const Product& product, bool blocked) {
  const auto& [c, a, b, bias, accumulate] = product;
  int64_t kinds = int64_t(c.dtype) | int64_t(a.dtype) << 4 | int64_t(b.dtype) << 8 | int64_t(bias != nullptr) << 12 |
                  int64_t(accumulate) << 13 | int64_t(blocked) << 14;
  return {c.rows,       c.columns,       a.columns,    kinds,           omp_get_max_threads(), omp_in_parallel(),
          a.row_stride, a.column_stride, b.row_stride, b.column_stride, c.row_stride,          c.column_stride};
}

Compiled compile(const Product& product, const memory::desc& b_desc) {
  const dnnl::engine& engine = session().engine;
  memory::desc a_desc = desc_of(product.a), c_desc = desc_of(product.c);
  memory::desc bias_desc;
  if (product.bias) bias_desc = {{1, product.c.columns}, memory::data_type::f32, memory::format_tag::ab};
  dnnl::primitive_attr attributes;
  if (product.accumulate) {
    dnnl::post_ops operations;
    operations.append_sum(1.0f);
    attributes.set_post_ops(operations);
  }
  const dnnl::matmul::primitive_desc chosen = choose(engine, {c_desc, a_desc, b_desc, bias_desc}, attributes);
  Compiled compiled{.b_desc = b_desc};
  if (!chosen) return compiled;
  compiled.primitive = dnnl::matmul(chosen);
  compiled.is_reference = std::string_view(chosen.impl_info_str()).find("ref") != std::string_view::npos;
  compiled.a = memory(a_desc, engine, nullptr);
  compiled.b = memory(b_desc, engine, nullptr);
  compiled.c = memory(c_desc, engine, nullptr);
  compiled.arguments = {
      {DNNL_ARG_SRC, compiled.a.get()}, {DNNL_ARG_WEIGHTS, compiled.b.get()}, {DNNL_ARG_DST, compiled.c.get()}};
  if (product.bias) {
    compiled.bias = memory(bias_desc, engine, nullptr);
    compiled.arguments.push_back({DNNL_ARG_BIAS, compiled.bias.get()});
  }
  return compiled;
}

Compiled& compiled_for(const Product& product, const Blocked* blocked) {
  constexpr size_t kMostPrimitives = 512;  // a model uses a few dozen shapes
  auto& kept = session().compiled;
  Key key = key_of(product, blocked != nullptr);
  auto found = kept.find(key);
  if (found != kept.end() && (!blocked || found->second.b_desc == blocked->layout().desc)) return found->second;
  if (kept.size() >= kMostPrimitives) kept.clear();
  return kept[key] = compile(product, blocked ? blocked->layout().desc : desc_of(product.b));
}

// The layout that oneDNN prefers for a second factor like `b`; plain rows are one, too.
memory::desc preferred_layout(const Matrix& b, const RowStrides& strides) {
  constexpr int64_t kTypicalRows = 1024;  // of the other factor
  const Key key = {b.rows, b.columns, int64_t(b.dtype), strides.a, strides.c, omp_get_max_threads()};
  auto& kept = session().preferred;
  if (auto found = kept.find(key); found != kept.end()) return found->second;
  return kept[key] = checked("choosing a weight format", [&] {
           const memory::desc a_desc({kTypicalRows, b.rows}, type_of(b.dtype), {strides.a, 1});
           const memory::desc any({b.rows, b.columns}, type_of(b.dtype), memory::format_tag::any);
           const memory::desc c_desc({kTypicalRows, b.columns}, type_of(b.dtype), {strides.c, 1});
           const dnnl::matmul::primitive_desc chosen = choose(session().engine, {c_desc, a_desc, any, {}}, {});
           return chosen ? chosen.weights_desc() : any;
         });
}

}  // namespace

Matrix matrix_of(const ConstTensor& tensor) {
  require(tensor.dims() == 2, "a matrix has two dims, not {}", tensor.shape());
  return {const_cast<void*>(tensor.data()), tensor.size(0), tensor.size(1), tensor.stride(0), 1, tensor.dtype()};
}

Matrix transposed(const Matrix& matrix) {
  return {matrix.data, matrix.columns, matrix.rows, matrix.column_stride, matrix.row_stride, matrix.dtype};
}

Matrix block_of(const Matrix& matrix, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  Matrix block = matrix;
  int64_t offset = row * matrix.row_stride + column * matrix.column_stride;
  block.data = static_cast<std::byte*>(matrix.data) + offset * bytes_of(matrix.dtype);
  block.rows = rows;
  block.columns = columns;
  return block;
}

Blocked::Blocked() = default;
Blocked::~Blocked() = default;
Blocked::Blocked(Blocked&&) noexcept = default;
Blocked& Blocked::operator=(Blocked&&) noexcept = default;

bool Blocked::defined() const {
  return layout_ != nullptr;
}

int64_t Blocked::size_bytes() const {
  return buffer_.size_bytes();
}

void Blocked::assign_preferred(const Matrix& b, const RowStrides& strides) {
  if (!alike(b, like_) || strides != strides_) {
    strides_ = strides;
    const memory::desc preferred = preferred_layout(b, strides);
    set_layout(b, has_blocks(preferred) ? std::make_unique<Layout>(Layout{.desc = preferred}) : nullptr);
  }
  copy(b);
}

void Blocked::assign_tiles(const Matrix& b, int tile_columns) {
  auto tag = tile_columns == 64 ? memory::format_tag::BA16a64b : memory::format_tag::BA16a16b;
  set_layout(b, std::make_unique<Layout>(Layout{.desc = {{b.rows, b.columns}, type_of(b.dtype), tag}}));
  copy(b);
}

void Blocked::set_layout(const Matrix& b, std::unique_ptr<Layout> layout) {
  like_ = b;
  layout_ = std::move(layout);
  const Device device = b.data ? Device{} : Device{DeviceKind::meta};
  buffer_ = layout_ ? Buffer(device, int64_t(layout_->desc.get_size())) : Buffer();
  if (!layout_ || !b.data) return;
  checked("blocking a weight", [&] {
    layout_->from = memory(desc_of(plain_strides(b)), session().engine, nullptr);
    layout_->to = memory(layout_->desc, session().engine, buffer_.data());
    layout_->reorder = dnnl::reorder(layout_->from, layout_->to);
  });
}

void Blocked::copy(const Matrix& b) {
  if (!layout_ || !b.data) return;
  checked("blocking a weight", [&] {
    layout_->from.set_data_handle(b.data);
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, layout_->from.get()}, {DNNL_ARG_TO, layout_->to.get()}};
    execute(layout_->reorder, arguments);
  });
}

bool run(const Product& given, Effort effort, const Blocked* blocked) {
  Product product = given;
  for (Matrix* matrix : {&product.c, &product.a, &product.b}) *matrix = plain_strides(*matrix);
  return checked("multiplying matrices", [&] {
    Compiled& compiled = compiled_for(product, blocked);
    if (!compiled || (compiled.is_reference && effort == Effort::fast)) return false;
    compiled.a.set_data_handle(product.a.data);
    compiled.b.set_data_handle(blocked ? blocked->data() : product.b.data);
    compiled.c.set_data_handle(product.c.data);
    if (product.bias) compiled.bias.set_data_handle(const_cast<float*>(product.bias));
    execute(compiled.primitive, compiled.arguments);
    return true;
  });
}

void forget_products() {
  session().compiled.clear();
}

Bf16Support bf16_support() {
  const auto instructions = int(dnnl::get_effective_cpu_isa());
  const auto uses = [&](dnnl_cpu_isa_t isa) { return (instructions & isa) == int(isa); };
  if (instructions != unknown_instructions() && !uses(dnnl_cpu_isa_avx512_core_bf16))
    return {false, "the CPU has no bf16 instructions that oneDNN uses"};
  if (cpu::has_slow_bf16() && !uses(dnnl_cpu_isa_avx512_core_amx) && !instructions_were_chosen())
    return {false, "the CPU's bf16 instructions are slower than its fp32 ones, and it shows no AMX"};
  constexpr int64_t kSize = 64;
  Matrix square{nullptr, kSize, kSize, kSize, 1, DType::bf16};
  Compiled compiled = checked("trying a bf16 product", [&] {
    return compile({square, square, square}, desc_of(square));
  });
  if (!compiled) return {false, "oneDNN has no bf16 product for this CPU"};
  if (compiled.is_reference) return {false, "oneDNN has only plain loops for bf16 products on this CPU"};
  return {true, ""};
}

std::string version_and_instructions() {
  const dnnl_version_t* version = dnnl_version();
  const char* instructions = "its own choice of instructions";
  switch (int(dnnl::get_effective_cpu_isa())) {
    case dnnl_cpu_isa_sse41:
      instructions = "SSE4.1";
      break;
    case dnnl_cpu_isa_avx:
      instructions = "AVX";
      break;
    case dnnl_cpu_isa_avx2:
      instructions = "AVX2";
      break;
    case dnnl_cpu_isa_avx2_vnni:
      instructions = "AVX2 with VNNI";
      break;
    case dnnl_cpu_isa_avx512_core:
    case dnnl_cpu_isa_avx512_core_vnni:
      instructions = "AVX-512";
      break;
    case dnnl_cpu_isa_avx512_core_bf16:
      instructions = "AVX-512 with bf16";
      break;
    case dnnl_cpu_isa_avx512_core_amx:
      instructions = "AMX";
      break;
    default:
      break;
  }
  return fmt::format("oneDNN {}.{}.{}, {}", version->major, version->minor, version->patch, instructions);
}

}  // namespace keel::ops::onednn
