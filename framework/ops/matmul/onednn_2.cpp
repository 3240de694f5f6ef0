#include "framework/ops/matmul/onednn_version.h"

namespace keel::ops::onednn {

dnnl::matmul::primitive_desc choose(const dnnl::engine& engine, const ProductLayouts& x,
                                    const dnnl::primitive_attr& attributes) {
  const auto product =
      x.bias.data.ndims == 0 ? dnnl::matmul::desc(x.a, x.b, x.c) : dnnl::matmul::desc(x.a, x.b, x.bias, x.c);
  return {product, attributes, engine, /*allow_empty=*/true};
}

bool has_blocks(const dnnl::memory::desc& desc) {
  return desc.data.format_kind == dnnl_blocked && desc.data.format_desc.blocking.inner_nblks > 0;
}

int unknown_instructions() {
  return int(dnnl_cpu_isa_all);
}

}  // namespace keel::ops::onednn
