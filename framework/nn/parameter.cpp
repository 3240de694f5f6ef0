#include "framework/nn/parameter.h"

#include <algorithm>
#include <cmath>

#include "framework/base/rng.h"
#include "framework/ops/elementwise.h"
#include "framework/tensor/copy.h"

namespace keel::nn {
namespace {

// Padding of a bucket, per data rank: whole cache lines of fp32.
constexpr int64_t kPadding = 16;
// Of a parameter's first element: 16 bytes in bf16, 32 in fp32.
constexpr int64_t kAlignment = 8;

int64_t rounded_up(int64_t elements, int64_t multiple) {
  return (elements + multiple - 1) / multiple * multiple;
}

double initial_value(const Init& init, uint64_t key, int64_t index) {
  if (init.kind == Init::Kind::constant) return init.value;
  double p = uniform(key, uint64_t(index));
  if (init.kind == Init::Kind::truncated_3sigma) {
    const double below = 0.5 * std::erfc(3 / std::sqrt(2.0));  // the mass below -3 sigma
    p = below + p * (1 - 2 * below);
  }
  return init.value * inverse_normal(p);
}

}  // namespace

int64_t Parameter::shard_offset() const {
  if (placement.kind != Placement::Kind::shard) return 0;
  return tensor.index / placement.replicas * local[placement.dim];
}

Parameter::Runs Parameter::runs() const {
  const Shape& logical = spec.shape;
  if (logical == local) return {local.elements(), local.elements(), 0};
  const int dim = placement.dim;
  int64_t inner = 1;
  for (int i = dim + 1; i < local.dims(); ++i) inner *= local[i];
  return {local[dim] * inner, logical[dim] * inner, shard_offset() * inner};
}

bool Parameter::first_replica() const {
  return placement.kind == Placement::Kind::shard ? tensor.index % placement.replicas == 0 : tensor.index == 0;
}

Parameter& ParameterSet::declare(ParameterSpec spec) {
  for (const Parameter& other : parameters_)
    require(other.spec.name != spec.name, "parameter {} is declared twice", spec.name);
  parameters_.push_back(Parameter{.spec = std::move(spec)});
  return parameters_.back();
}

Parameter& ParameterSet::at(const std::string& name) {
  for (Parameter& parameter : parameters_)
    if (parameter.spec.name == name) return parameter;
  throw Error(ErrorKind::internal, fmt::format("there is no parameter {}", name));
}

void ParameterSet::place(Parameter& parameter, const ParameterLayout& layout) {
  const Placement& placement = parameter.placement;
  parameter.tensor = layout.tensor;
  parameter.local = parameter.spec.shape;
  if (placement.kind == Placement::Kind::shard) {
    int pieces = layout.tensor.size / placement.replicas;
    int64_t size = parameter.spec.shape[placement.dim];
    if (pieces == 0 || layout.tensor.size % placement.replicas != 0 || size % pieces != 0)
      throw input_error("parallel.tensor={}: {} {} cannot be cut into {} equal pieces along dim {}", layout.tensor.size,
                        parameter.spec.name, parameter.spec.shape, pieces, placement.dim);
    parameter.local[placement.dim] = size / pieces;
  }
  DType compute = parameter.spec.product ? layout.activation : DType::f32;
  auto same = [&](const ParameterArena& a) {
    return a.compute_dtype == compute && a.decayed == parameter.spec.decayed;
  };
  auto found = std::find_if(arenas_.begin(), arenas_.end(), same);
  if (found == arenas_.end()) {
    arenas_.emplace_back().compute_dtype = compute;
    found = arenas_.end() - 1;
    found->decayed = parameter.spec.decayed;
  }
  parameter.arena = int(found - arenas_.begin());
  parameter.offset_elements = parameter.spec.beside ? found->elements : rounded_up(found->elements, kAlignment);
  found->elements = parameter.offset_elements + parameter.local.elements();
  found->parameters.push_back(&parameter);
}

// A bucket ends where its elements divide among the data ranks. Only the arena's last bucket may need padding for that,
// so that parameters side by side stay so.
void ParameterSet::close_bucket(ParameterArena& arena, int64_t multiple) {
  int64_t begin = arena.bucket_ends.empty() ? 0 : arena.bucket_ends.back();
  arena.elements = begin + rounded_up(arena.elements - begin, multiple);
  if (arena.elements > begin) arena.bucket_ends.push_back(arena.elements);
}

void ParameterSet::allocate(const ParameterLayout& layout) {
  require(arenas_.empty(), "parameters are allocated once");
  for (Parameter& parameter : parameters_) place(parameter, layout);
  const int64_t multiple = kPadding * layout.data_ranks;
  const int64_t bucket = std::max(multiple, layout.bucket_elements / multiple * multiple);
  for (ParameterArena& arena : arenas_) {
    for (int64_t end = bucket; end < arena.elements; end += bucket) arena.bucket_ends.push_back(end);
    close_bucket(arena, multiple);
    const Shape flat = {arena.elements};
    arena.master_buffer_ = Buffer(layout.device, arena.elements * 4);
    arena.gradient_buffer_ = Buffer(layout.device, arena.elements * 4);
    arena.master = arena.master_buffer_.tensor(0, flat, DType::f32);
    arena.gradient = arena.gradient_buffer_.tensor(0, flat, DType::f32);
    arena.compute = arena.master;
    if (arena.compute_dtype != DType::f32) {
      arena.compute_buffer_ = Buffer(layout.device, arena.elements * bytes_of(arena.compute_dtype));
      arena.compute = arena.compute_buffer_.tensor(0, flat, arena.compute_dtype);
    }
    for (Parameter* parameter : arena.parameters) {
      int64_t begin = parameter->offset_elements, end = begin + parameter->local.elements();
      parameter->master = arena.master.slice(0, begin, end).reshaped(parameter->local);
      parameter->gradient = arena.gradient.slice(0, begin, end).reshaped(parameter->local);
      parameter->compute = arena.compute.slice(0, begin, end).reshaped(parameter->local);
    }
  }
}

void ParameterSet::initialise(uint64_t seed) {
  for (Parameter& parameter : parameters_) {
    if (parameter.master.device().is_meta()) return;
    uint64_t key = key_of(seed, "init/" + parameter.spec.name);
    const HostTensor host(parameter.master);
    float* values = host.tensor().as<float>();
    for_each_run(parameter, [&](int64_t logical, int64_t local, int64_t count) {
#pragma omp parallel for schedule(static)
      for (int64_t i = 0; i < count; ++i)
        values[local + i] = float(initial_value(parameter.spec.init, key, logical + i));
    });
    host.put_back();
  }
  round_to_compute();
}

void ParameterSet::round_to_compute() {
  for (ParameterArena& arena : arenas_)
    if (arena.compute_dtype != DType::f32 && !rounds_stochastically()) ops::convert(arena.compute, arena.master);
  for (size_t i = 0; i < roundings_.size(); ++i)
    if (const Parameter& parameter = parameters_[i]; parameter.compute.dtype() == DType::bf16)
      ops::round_stochastically(parameter.compute, parameter.master, roundings_[i]);
}

void ParameterSet::round_stochastically(uint64_t seed, ConstTensor updates, ConstTensor gate) {
  roundings_.clear();
  for (const Parameter& parameter : parameters_) {
    const auto [run, stride, offset] = parameter.runs();
    roundings_.push_back({key_of(seed, "rounding/" + parameter.spec.name), updates, gate, run, stride, offset});
  }
}

void ParameterSet::zero_gradients() {
  for (ParameterArena& arena : arenas_) ops::fill(arena.gradient, 0);
}

void for_each_run(const Parameter& parameter, const std::function<void(int64_t, int64_t, int64_t)>& f) {
  const auto [size, stride, offset] = parameter.runs();
  for (int64_t run = 0; run * size < parameter.local.elements(); ++run) f(run * stride + offset, run * size, size);
}

Tensor stacked(std::span<Parameter* const> parameters, Tensor Parameter::*part) {
  const Parameter& first = *parameters.front();
  Shape shape = first.local;
  int64_t next = first.offset_elements + first.local.elements();
  for (Parameter* parameter : parameters.subspan(1)) {
    require(parameter->arena == first.arena && parameter->offset_elements == next, "{} does not lie beside {}",
            parameter->spec.name, first.spec.name);
    shape[0] += parameter->local[0];
    next += parameter->local.elements();
  }
  const Tensor& begin = first.*part;
  return Tensor(begin.data(), shape, begin.dtype(), begin.device());
}

StateBytes state_bytes(const ParameterSet& parameters, int64_t moment_shards) {
  StateBytes bytes;
  for (const ParameterArena& arena : parameters.arenas()) {
    const auto elements = double(arena.elements);
    bytes.weights += 4 * elements;
    bytes.gradients += 4 * elements;
    bytes.moments += 8 * elements / double(moment_shards);
    if (arena.compute_dtype != DType::f32) bytes.copies += elements * double(bytes_of(arena.compute_dtype));
  }
  return bytes;
}

}  // namespace keel::nn
