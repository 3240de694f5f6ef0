#include "framework/ops/matmul/onednn_version.h"

namespace keel::ops::onednn {

dnnl::matmul::primitive_desc choose(const dnnl::engine& engine, const ProductLayouts& x,
                                    const dnnl::primitive_attr& attributes) {
  if (x.bias.get_ndims() == 0) return {engine, x.a, x.b, x.c, attributes, /*allow_empty=*/true};
  return {engine, x.a, x.b, x.bias, x.c, attributes, /*allow_empty=*/true};
}

bool has_blocks(const dnnl::memory::desc& desc) {
  return desc.get_format_kind() == dnnl::memory::format_kind::blocked && desc.get_inner_nblks() > 0;
}

int unknown_instructions() {
  return int(dnnl_cpu_isa_default);
}

}  // namespace keel::ops::onednn
