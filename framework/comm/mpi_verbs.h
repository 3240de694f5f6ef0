// The algorithms of the collectives over point-to-point messages. Every rank's messages follow from the sizes, the
// number of ranks and the options alone, so that all ranks cut alike.
#pragma once

#include "framework/comm/mpi_operation.h"

namespace keel::comm {

// `elements` split into blocks of `block`, one per rank; the last blocks may be shorter or empty.
struct Blocks {
  int64_t elements = 0;
  int64_t block = 0;
  int64_t begin(int rank) const { return std::min(rank * block, elements); }
  int64_t size(int rank) const { return std::min(block, elements - begin(rank)); }
};

struct Exchange {
  void* out = nullptr;       // the whole tensor, or for a reduce_scatter the own block
  const void* in = nullptr;  // the whole tensor, or for an all_gather the own block
  Blocks blocks;
  DType dtype = DType::f32;
  Reduction reduction = Reduction::sum;
};

// Everyone sends everything to all in log2(size) rounds, and each sums for itself. For short tensors.
Steps small_all_reduce(MpiOperation& operation, Exchange exchange);
// Everyone receives its own block from all, a chunk at a time while the next travels, and adds it up in rank order.
// With `gather`, the sums are then sent to all.
Steps reduce_blocks(MpiOperation& operation, Exchange exchange, bool gather);
Steps gather_blocks(MpiOperation& operation, Exchange exchange);
Steps exchange_blocks(MpiOperation& operation, Exchange exchange);
// A binomial tree, in pieces, so that a rank hands on the first while it receives the next.
Steps broadcast(MpiOperation& operation, Tensor x, int root);
Steps send_one(MpiOperation& operation, ConstTensor x, int to);
Steps receive_one(MpiOperation& operation, Tensor x, int from);
Steps meet(MpiOperation& operation);

}  // namespace keel::comm
