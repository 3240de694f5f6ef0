// What differs between oneDNN 2 and 3 in the way products are asked for. onednn_2.cpp or onednn_3.cpp is built.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace keel::ops::onednn {

struct ProductLayouts {
  dnnl::memory::desc c, a, b, bias;  // c = a b + bias; a bias of no dims: none
};
// Empty where the library has no implementation.
dnnl::matmul::primitive_desc choose(const dnnl::engine& engine, const ProductLayouts& layouts,
                                    const dnnl::primitive_attr& attributes);
// Whether elements lie in blocks, not in rows or columns.
bool has_blocks(const dnnl::memory::desc& desc);
// What dnnl_get_effective_cpu_isa says on other processors than x86.
int unknown_instructions();

}  // namespace keel::ops::onednn
