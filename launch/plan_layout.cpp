#include "launch/plan_layout.h"

#include <algorithm>
#include <cmath>

#include "framework/ops/matmul.h"

namespace keel {
namespace {

// A tensor group of a size that this start does not have: it exchanges nothing and counts what it would send, as a ring
// does (an all-reduce sends every byte twice, less this rank's share).
class CountingGroup : public nn::TensorGroup {
 public:
  explicit CountingGroup(int64_t size) : size_(size) {}
  void enter_forward(Tensor) override {}
  void leave_forward(Tensor y) override { sum(y); }
  void leave_backward(Tensor) override {}
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
  Rehearsal(const FullConfig& config, const PlanDevice& device, const LayoutPlan& plan, int64_t micro)
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

double parameter_elements(Rehearsal& rehearsal) {
  double elements = 0;
  for (const nn::ParameterArena& arena : rehearsal.decoder.parameters().arenas()) elements += double(arena.elements);
  return elements;
}

double copied_elements(Rehearsal& rehearsal) {
  double elements = 0;
  for (const nn::ParameterArena& arena : rehearsal.decoder.parameters().arenas())
    if (arena.compute_dtype != DType::f32) elements += double(arena.elements);
  return elements;
}

// Forms of the weights that products want beside W itself: what a CPU keeps differs by its instructions, so a small one
// is made and measured.
double packed_bytes(Rehearsal& rehearsal, const PlanDevice& device, DType type) {
  if (device.gpu) return 0;
  constexpr int64_t kSize = 512;
  const OwnedTensor weight({kSize, kSize}, type);
  ops::PackedWeight probe;
  probe.refresh(weight);
  const double share = double(probe.size_bytes()) / double(kSize * kSize);
  return share * double(rehearsal.decoder.cost(1).product_parameters) / double(rehearsal.group.size());
}

// Where bf16 products run as fp32 ones: both factors and the result of a block of at most 2048 x 2048.
double widening_bytes(const FullConfig& config, const PlanDevice& device, const LayoutPlan& plan) {
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
double saves_bytes(const FullConfig& config, const PlanDevice& device, const LayoutPlan& plan, double elements) {
  const config::CheckpointConfig& c = config.run.checkpoint;
  if (device.gpu || !c.background || c.every.value_or(0) == 0) return 0;
  return (c.weights_only ? 4 : 12) * elements / double(config.run.parallel.zero ? plan.data : 1);
}

PlannedMemory memory_of(const FullConfig& config, const PlanDevice& device, const LayoutPlan& plan, Rehearsal& one) {
  const double elements = parameter_elements(one), copied = copied_elements(one);
  PlannedMemory memory;
  memory.weights = 4 * elements;
  memory.copies = 2 * copied + packed_bytes(one, device, activation_type(config));
  memory.gradients = 4 * elements;
  memory.moments = 8 * elements / double(config.run.parallel.zero ? plan.data : 1);
  memory.saves = saves_bytes(config, device, plan, elements);
  memory.activations = double(one.decoder.activation_bytes());
  memory.tables = table_bytes(config, plan);
  memory.scratch = plan.tensor * plan.data > 1 ? device.exchange_bytes : 0;
  memory.program = device.program_bytes;
  return memory;
}

// The largest divisor of the step's sequences that fits; where the config gives one, that.
void choose_micro(const FullConfig& config, const PlanDevice& device, LayoutPlan& plan) {
  const double left = device.memory_bytes - plan.memory.total();  // beside a micro-batch of one sequence
  plan.largest_micro = left < 0 ? 0 : 1 + int64_t(left / std::max(1.0, plan.bytes_per_sequence));
  plan.micro = 1;
  const config::Layout layout{plan.tensor, plan.data, plan.rows};
  const int64_t wanted = batch_sizes(config, layout).micro_sequences;
  for (int64_t divisor = 1; divisor <= std::min(plan.rows, wanted); ++divisor)
    if (plan.rows % divisor == 0 && divisor <= plan.largest_micro) plan.micro = divisor;
  if (!config.run.batch.micro_sequences.is_auto()) plan.micro = wanted;
}

void add_exchanges(const FullConfig& config, LayoutPlan& plan, Rehearsal& one) {
  const double micro_steps = double(plan.rows / plan.micro), d = double(plan.data);
  plan.tensor_bytes = micro_steps * double(plan.micro) * one.exchanged_bytes(1, config.run.data.sequence_length);
  const double elements = parameter_elements(one), copied = copied_elements(one);
  // Gradients are reduce-scattered in fp32; what products read comes back, or the summed gradients where unsharded.
  const double back = config.run.parallel.zero ? 4 * (elements - copied) + 2 * copied : 4 * elements;
  plan.data_bytes = (d - 1) / d * (4 * elements + back);
}

void add_time(const FullConfig& config, const PlanDevice& device, LayoutPlan& plan, Rehearsal& one) {
  const double tokens = double(plan.rows * config.run.data.sequence_length), t = double(plan.tensor);
  const nn::ModelCost cost = one.decoder.cost(config.run.data.sequence_length);
  const double operations = 6 * double(cost.product_parameters) + cost.attention_operations / 2;
  plan.time.products = tokens * operations / t / device.product_rate(activation_type(config));
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

LayoutPlan plan_layout(const FullConfig& config, const PlanDevice& device, int64_t tensor, int64_t data) {
  LayoutPlan plan{.tensor = tensor, .data = data};
  config::RunConfig laid_out = config.run;
  laid_out.parallel.tensor = tensor;
  laid_out.parallel.data = data;
  laid_out.parallel.ranks = tensor * data;
  try {
    plan.rows = config::check_layout(laid_out, tensor * data).sequences_per_data_rank;
    Rehearsal one(config, device, plan, 1), two(config, device, plan, 2);
    plan.memory = memory_of(config, device, plan, one);
    plan.bytes_per_sequence = double(two.decoder.activation_bytes() - one.decoder.activation_bytes());
    choose_micro(config, device, plan);
    plan.memory.activations += double(plan.micro - 1) * plan.bytes_per_sequence;
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
