#include "launch/plan/plan_layout.h"

#include <algorithm>
#include <cmath>

#include "framework/ops/matmul/matmul.h"

namespace keel {
namespace {

// A tensor group of a size that this start does not have: it exchanges nothing and counts what it would send, as a ring
// does (an all-reduce sends every byte twice, less this rank's share).
class CountingGroup : public nn::TensorGroup {
 public:
  explicit CountingGroup(int64_t size) : size_(size) {}
  void leave_forward(Tensor y) override { sum(y); }
  void enter_backward(Tensor dx) override { sum(dx); }
  void sum(Tensor x) override { sent_bytes += 2.0 * double(size_ - 1) / double(size_) * double(x.size_bytes()); }
  void maximum(Tensor x) override { sum(x); }
  void gather(Tensor, ConstTensor x) override { sent_bytes += double(size_ - 1) * double(x.size_bytes()); }
  int size() const override { return int(size_); }

  double sent_bytes = 0;

 private:
  int64_t size_;
};

// A decoder on the meta device, split, with micro-batches of `micro` sequences.
struct Rehearsal {
  Rehearsal(const FullConfig& config, const DeviceSheet& device, const LayoutPlan& plan, int64_t micro)
      : group(plan.tensor), decoder(config.model) {
    decoder.allocate({.parameters = {.device = {DeviceKind::meta},
                                     .activation = activation_type(config),
                                     .tensor = {0, int(plan.tensor)},
                                     .data_ranks = int(plan.data)},
                      .group = &group,
                      .batch = {micro, config.run.data.sequence_length},
                      .training = true,
                      .rehearses = device.gpu ? DeviceKind::cuda : DeviceKind::cpu});
    decoder.rehearse();
  }
  // Those of a forward and a backward without the evaluation that a rehearsal also visits.
  double exchanged_bytes(int64_t micro, int64_t length) {
    group.sent_bytes = 0;
    constexpr Device meta{DeviceKind::meta};
    const Tensor ids(nullptr, {micro, length}, DType::i32, meta), sums(nullptr, {4}, DType::f64, meta);
    decoder.forward_backward(sums, {ids, ids, ids, ids}, {.factor = Tensor(nullptr, {1}, DType::f32, meta)});
    return group.sent_bytes;
  }

  CountingGroup group;
  models::Decoder decoder;
};

// Where bf16 products run as fp32 ones: both factors and the result of a block of at most 2048 x 2048.
double widening_bytes(const FullConfig& config, const DeviceSheet& device, const LayoutPlan& plan) {
  if (device.gpu || activation_type(config) == DType::f32 || ops::bf16_products_are_native()) return 0;
  const int64_t widest = std::max(config.model.hidden, 2 * config.model.ffn / plan.tensor);
  const int64_t tokens = plan.micro * config.run.data.sequence_length;
  return 3.0 * 4 * double(std::min<int64_t>(2048, tokens)) * double(std::min<int64_t>(2048, widest));
}

double table_bytes(const FullConfig& config, const LayoutPlan& plan) {
  const models::DecoderConfig& model = config.model;
  const double T = double(config.run.data.sequence_length);
  const int tables = int(model.positions.global == models::PositionKind::rope) +
                     int(model.positions.local == models::PositionKind::rope);
  const double ids = 4 * 4 * double(plan.rows) * T;  // tokens, targets, positions, first keys
  return ids + tables * T * double(model.rotated_features()) * 4;
}

// Rank 0's: with ZeRO a rank writes the pieces that it updates, without it the first data rank writes all.
double saves_bytes(const FullConfig& config, const DeviceSheet& device, const LayoutPlan& plan, double weights) {
  const config::CheckpointConfig& c = config.run.checkpoint;
  if (device.gpu || !c.background || c.every.value_or(0) == 0) return 0;
  return (c.weights_only ? 1 : 3) * weights / double(config.run.parallel.zero ? plan.data : 1);
}

PlannedMemory memory_of(const FullConfig& config, const DeviceSheet& device, const LayoutPlan& plan, Rehearsal& one) {
  const nn::StateBytes state = nn::state_bytes(one.decoder.parameters(), config.run.parallel.zero ? plan.data : 1);
  PlannedMemory memory;
  memory.weights = state.weights;
  memory.copies = state.copies + (device.gpu ? 0 : double(one.decoder.packed_bytes()));
  memory.gradients = state.gradients;
  memory.moments = state.moments;
  memory.saves = saves_bytes(config, device, plan, state.weights);
  memory.activations = double(one.decoder.activation_bytes());
  memory.tables = table_bytes(config, plan);
  memory.scratch = plan.tensor * plan.data > 1 ? device.exchange_bytes : 0;
  memory.program = device.program_bytes;
  return memory;
}

int64_t activations_of(const FullConfig& config, const DeviceSheet& device, const LayoutPlan& plan, int64_t micro) {
  return Rehearsal(config, device, plan, micro).decoder.activation_bytes();
}

// Activations grow with the micro-batch, and less from where the classifier takes it in several chunks.
struct Growth {
  int64_t chunk = 1;              // sequences that surely fill one
  double first = 0, more = 0;     // bytes of one more sequence, up to there and beyond
  double base = 0, at_chunk = 0;  // bytes of a micro-batch of 1 and of `chunk`
};

Growth growth_of(const FullConfig& config, const DeviceSheet& device, const LayoutPlan& plan, Rehearsal& one) {
  const int64_t T = config.run.data.sequence_length;
  auto bytes = [&](int64_t micro) { return double(activations_of(config, device, plan, micro)); };
  Growth growth{.chunk = (nn::Classifier::kMostChunkTokens + T - 1) / T,
                .base = double(one.decoder.activation_bytes())};
  growth.at_chunk = growth.chunk == 1 ? growth.base : bytes(growth.chunk);
  growth.more = bytes(growth.chunk + 1) - growth.at_chunk;
  growth.first = growth.chunk == 1 ? growth.more : bytes(2) - growth.base;
  return growth;
}

// The largest divisor of the step's sequences that fits; where the config gives one, that.
void choose_micro(const FullConfig& config, const DeviceSheet& device, const Growth& growth, LayoutPlan& plan) {
  const double left = device.memory_bytes - plan.memory.total();  // beside a micro-batch of one sequence
  const double left_at_chunk = left - (growth.at_chunk - growth.base);
  plan.largest_micro = left < 0            ? 0
                       : left_at_chunk < 0 ? 1 + int64_t(left / std::max(1.0, growth.first))
                                           : growth.chunk + int64_t(left_at_chunk / std::max(1.0, growth.more));
  plan.micro = 1;
  const config::Layout layout{plan.tensor, plan.data, plan.rows};
  const int64_t wanted = batch_sizes(config, layout).micro_sequences;
  for (int64_t divisor = 1; divisor <= std::min(plan.rows, wanted); ++divisor)
    if (plan.rows % divisor == 0 && divisor <= plan.largest_micro) plan.micro = divisor;
  if (!config.run.batch.micro_sequences.is_auto()) plan.micro = wanted;
  plan.bytes_per_sequence = plan.micro < growth.chunk ? growth.first : growth.more;
}

// Of gradients that several ranks of a tensor group have parts of (shared gains, copied KV heads): summed once a step,
// of what a data rank updates.
double shared_gradient_bytes(const LayoutPlan& plan, Rehearsal& one) {
  double bytes = 0;
  for (const nn::Parameter& parameter : one.decoder.parameters().all()) {
    const nn::Placement& placement = parameter.placement;
    const bool partial = placement.kind == nn::Placement::Kind::replicated_partial;
    const double ranks = partial ? double(plan.tensor) : double(placement.replicas);
    bytes += 2 * (ranks - 1) / ranks * 4 * double(parameter.local.elements()) / double(plan.data);
  }
  return bytes;
}

void add_exchanges(const FullConfig& config, LayoutPlan& plan, Rehearsal& one) {
  const double micro_steps = double(plan.rows / plan.micro), d = double(plan.data);
  plan.tensor_bytes = micro_steps * double(plan.micro) * one.exchanged_bytes(1, config.run.data.sequence_length) +
                      shared_gradient_bytes(plan, one);
  const nn::StateBytes state = nn::state_bytes(one.decoder.parameters(), 1);
  // Gradients are reduce-scattered in fp32; what products read comes back (bf16 copies are half as large as their
  // masters), or the summed gradients where unsharded.
  const double back = config.run.parallel.zero ? state.weights - state.copies : state.gradients;
  plan.data_bytes = (d - 1) / d * (state.gradients + back);
}

void add_time(const FullConfig& config, const DeviceSheet& device, LayoutPlan& plan, Rehearsal& one) {
  const double tokens = double(plan.rows * config.run.data.sequence_length), t = double(plan.tensor);
  const models::ModelCost cost = one.decoder.cost(config.run.data.sequence_length);
  plan.time.products = tokens * (cost.operations_causal() + cost.recomputed_operations) / t /
                       device.product_rate(activation_type(config));
  // Every micro-step reads the weights three times and moves its activations about three times; the update reads and
  // writes masters, gradients and moments once.
  const PlannedMemory& memory = plan.memory;
  const double micro_steps = double(plan.rows / plan.micro);
  const double read = memory.copies > 0 ? memory.copies : memory.weights;
  plan.time.memory =
      (micro_steps * 3 * (read + memory.activations) + 2 * memory.weights + memory.gradients + 2 * memory.moments) /
      device.memory_rate;
  const bool hosts = plan.tensor * plan.data > device.ranks_per_host;
  const double across = hosts && plan.data > 1 ? device.network_rate : device.link_rate;
  plan.time.tensor = plan.tensor_bytes / (plan.tensor > device.ranks_per_host ? device.network_rate : device.link_rate);
  plan.time.data = plan.data_bytes / across;
}

}  // namespace

// Products and memory traffic overlap perfectly, data exchanges hide behind the backward half, tensor exchanges do not
// hide.
double PlannedTime::total() const {
  const double compute = std::max(products, memory);
  return compute + tensor + std::max(0.0, data - compute * 2 / 3);
}

LayoutPlan plan_layout(const FullConfig& config, const DeviceSheet& device, int64_t tensor, int64_t data) {
  LayoutPlan plan{.tensor = tensor, .data = data};
  config::RunConfig laid_out = config.run;
  laid_out.parallel.tensor = tensor;
  laid_out.parallel.data = data;
  laid_out.parallel.ranks = tensor * data;
  try {
    plan.rows = layout_for({laid_out, config.model}, tensor * data).sequences_per_data_rank;
    if (tensor > device.ranks_per_host && !config.run.parallel.tensor_across_hosts)
      throw input_error("tensor groups of {} cross hosts of {} ranks: parallel.tensor_across_hosts=true allows it",
                        tensor, device.ranks_per_host);
    Rehearsal one(config, device, plan, 1);
    plan.memory = memory_of(config, device, plan, one);
    choose_micro(config, device, growth_of(config, device, plan, one), plan);
    plan.memory.activations = double(activations_of(config, device, plan, plan.micro));
    plan.memory.scratch += widening_bytes(config, device, plan);
    add_exchanges(config, plan, one);
    add_time(config, device, plan, one);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) throw;
    plan.refused = error.what();
  }
  return plan;
}

}  // namespace keel
