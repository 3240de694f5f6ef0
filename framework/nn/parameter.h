// Parameters: logical tensors, the shard of each that this rank owns, and the flat arenas they lie in.
//
// A model declares parameters with logical shapes; parallelize.cpp sets placements; `allocate` lays the shards out;
// from then on layers read `local`, `compute` and `gradient`. A layer never asks which rank it is.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "framework/ops/update/stochastic_rounding.h"
#include "framework/tensor/buffer.h"

namespace keel::nn {

// How a parameter lies over the tensor axis, and so who sums its gradient (QKNORM.md section 5).
struct Placement {
  enum class Kind {
    replicated_whole,    // the same on every rank, its gradient already whole on each: nothing to sum
    replicated_partial,  // the same on every rank, each holding a part of the gradient: sum over the axis
    shard,               // one dim is cut into pieces, one per `replicas` consecutive ranks: sum over those
  };
  Kind kind = Kind::replicated_whole;
  int dim = 0;
  int replicas = 1;

  static Placement whole() { return {}; }
  static Placement partial() { return {Kind::replicated_partial}; }
  static Placement sharded(int dim, int replicas = 1) { return {Kind::shard, dim, replicas}; }
  bool operator==(const Placement&) const = default;
};

// A place on one mesh axis: this rank's index among `size`.
struct AxisPosition {
  int index = 0;
  int size = 1;
};

// Initial values, a function of (seed, name, logical index) and so the same at any layout.
struct Init {
  enum class Kind { constant, normal, truncated_3sigma } kind = Kind::constant;
  double value = 0;  // the constant, or the standard deviation
};

struct ParameterSpec {
  std::string name;
  Shape shape;  // logical
  Init init;
  bool decayed = false;  // weight decay: matrices, and what the config says of embeddings, gains and norms
  bool product = false;  // a factor of a matrix product or an embedding: has a compute copy in the activations' type
  int64_t layer = -1;    // that it is a matrix of; -1 for everything else. Statistics of layers go by it
  bool beside = false;   // lies right behind the one declared before it, so that both multiply as one
};

struct Parameter {
  ParameterSpec spec;
  Placement placement;
  Shape local;                  // this rank's shape
  int64_t offset_elements = 0;  // in its arena
  int arena = 0;                // index into ParameterSet::arenas()
  Tensor master;                // fp32
  Tensor gradient;              // fp32, accumulated
  Tensor compute;               // what products read: bf16 copy, or master itself
  AxisPosition tensor;          // this rank's place on the tensor axis

  // Where the shard begins in the logical tensor, along placement.dim (0 where it is whole).
  int64_t shard_offset() const;
  // How the shard's elements lie in the logical tensor: run i of them is [i * stride + offset, + size) there.
  struct Runs {
    int64_t size, stride, offset;
  };
  Runs runs() const;
  // The rank that speaks for this piece where several hold it: counted once in norms, written once in checkpoints.
  bool first_replica() const;
};

// One flat array of all parameters with the same compute type and decay, in the order of their declaration. Each begins
// where kernels can load 16 bytes at once, unless it lies beside the one before (q, k, v; gate, up). Padding, also that
// for the data axis at the end, stays 0.
struct ParameterArena {
  DType compute_dtype = DType::f32;
  bool decayed = false;
  int64_t elements = 0;  // with padding
  std::vector<Parameter*> parameters;
  std::vector<int64_t> bucket_ends;  // elements; gradients are reduced and weights gathered bucket by bucket
  Tensor master;                     // [elements] fp32
  Tensor gradient;                   // [elements] fp32
  Tensor compute;                    // [elements] bf16, or master itself

 private:
  friend class ParameterSet;
  Buffer master_buffer_, gradient_buffer_, compute_buffer_;
};

// Elements [begin, end) of one arena.
struct ArenaRange {
  int arena = 0;
  int64_t begin = 0;
  int64_t end = 0;
  // In sums over ranks: false where another rank of the tensor axis holds the same weights and counts them.
  bool counted = true;
  int64_t layer = -1;  // that these weights are matrices of (ParameterSpec)
  int64_t size() const { return end - begin; }
};

struct ParameterLayout {
  Device device;
  DType activation = DType::f32;
  AxisPosition tensor;
  int data_ranks = 1;
  int64_t bucket_elements = int64_t(4) << 20;
};

class ParameterSet {
 public:
  ParameterSet() = default;
  ParameterSet(const ParameterSet&) = delete;

  // The reference stays valid. Names are unique.
  Parameter& declare(ParameterSpec spec);
  // Sets local shapes and memory. Sizes that a placement does not divide are an input error naming the parameter.
  void allocate(const ParameterLayout& layout);
  void initialise(uint64_t seed);
  // compute = rounded master, for arenas that keep a copy.
  void round_to_compute();
  // From here on not to the nearest value, but stochastically (ops/update/stochastic_rounding.h). updates [1] int64,
  // made before the step at hand, and that step's gate [2] fp32 lie where the parameters do, and outlive this.
  void round_stochastically(uint64_t seed, ConstTensor updates, ConstTensor gate);
  bool rounds_stochastically() const { return !roundings_.empty(); }
  void zero_gradients();

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  Parameter& at(const std::string& name);
  std::vector<ParameterArena>& arenas() { return arenas_; }
  const std::vector<ParameterArena>& arenas() const { return arenas_; }
  // Where they were allocated.
  Device device() const { return arenas_.front().master.device(); }

 private:
  void place(Parameter& parameter, const ParameterLayout& layout);
  void close_bucket(ParameterArena& arena, int64_t multiple);

  std::deque<Parameter> parameters_;
  std::vector<ParameterArena> arenas_;
  std::vector<ops::StochasticRounding> roundings_;  // of each parameter, or none
};

// Calls f(logical_index, local_index, count) for each contiguous run of the shard in the logical tensor (row-major).
void for_each_run(const Parameter& parameter, const std::function<void(int64_t, int64_t, int64_t)>& f);

// One tensor over parameters that lie side by side, rows stacked: [sum of rows, columns]. `part` picks compute, master
// or gradient.
Tensor stacked(std::span<Parameter* const> parameters, Tensor Parameter::*part);

// Bytes of one rank.
struct StateBytes {
  double weights = 0;  // fp32 masters
  double copies = 0;   // that products read instead
  double gradients = 0;
  double moments = 0;
  double total() const { return weights + copies + gradients + moments; }
};
// With the moments divided over as many ranks.
StateBytes state_bytes(const ParameterSet& parameters, int64_t moment_shards);

}  // namespace keel::nn
