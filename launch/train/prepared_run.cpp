#include "launch/train/prepared_run.h"

#include <filesystem>
#include <map>
#include <tuple>

#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/comm/agreement.h"
#include "framework/ops/matmul/product_rate.h"
#include "framework/tensor/gpu.h"
#include "launch/common/choose_device.h"
#include "launch/common/device_sheet.h"
#include "launch/common/environment.h"
#include "launch/common/loaded_model.h"

namespace keel {
namespace {

// A tensor group exchanges activations several times a layer, so it stays on one host unless the config says otherwise.
// Collective.
config::Layout checked_layout(const FullConfig& config, comm::World& world) {
  const config::Layout layout = layout_for(config, world.size());
  if (layout.tensor == 1 || config.run.parallel.tensor_across_hosts) return layout;
  const auto group = world.all().split(world.rank() / int(layout.tensor), world.rank(), "hosts");
  const std::string first = comm::broadcast_text(*group, world.host());
  const int64_t away = comm::lowest_rank_where(world.all(), first != world.host());
  if (away == world.size()) return layout;
  const int leader = int(away - away % layout.tensor);
  const std::string here = comm::broadcast_text(world.all(), world.host(), leader);
  const std::string there = comm::broadcast_text(world.all(), world.host(), int(away));
  throw config.run.source["parallel"]["tensor"].error(
      "ranks {} on {} and {} on {} are of one tensor group: start as many ranks a host as groups of {} fill, or set "
      "parallel.tensor_across_hosts=true",
      leader, here, away, there, layout.tensor);
}

// What is trained on measures nothing. By whatever name: links lead to one file.
void check_held_out(const data::Dataset& training, const data::Dataset& held_out) {
  const auto place_of = [](const data::TokenFile& file) {
    std::error_code failure;
    const std::filesystem::path place = std::filesystem::canonical(file.path(), failure);
    return failure ? std::filesystem::path(file.path()) : place;
  };
  std::map<std::filesystem::path, std::string> trained;
  for (const data::TokenFile& file : training.files()) trained[place_of(file)] = file.path();
  for (const data::TokenFile& file : held_out.files())
    if (const auto same = trained.find(place_of(file)); same != trained.end())
      throw input_error(
          "{}: both data.train ({}) and data.valid name it: hold out text with `keel tokenize --valid`, or set "
          "data.valid=null",
          file.path(), same->second);
}

// In pieces that the slowest disk reads within the usual time limit, and the ranks meet after each: one that does not
// come back is missed, and however many tokens there are take as long as they take.
void verify_ids(const data::Dataset& data, comm::World& world) {
  constexpr int64_t kPiece_tokens = int64_t(1) << 26;
  int64_t tokens = 0;
  for (const data::TokenFile& file : data.files()) tokens += file.tokens();
  const int pieces = 1 + int(tokens / (world.size() * kPiece_tokens));
  for (int piece = 0; piece < pieces; ++piece)
    comm::together(world.all(), [&] { data.verify_ids(world.rank() * pieces + piece, world.size() * pieces); });
}

// What MFU is a share of, of this rank: on GPUs the data sheet's rate, as others give it, where that is known; else
// what products reach here, measured once in a process.
double peak_rate(DType type, Device device) {
  if (device.kind == DeviceKind::cuda)
    if (const DeviceSheet* sheet = known_gpu(cuda::describe_gpu(device.index).name)) return sheet->product_rate(type);
  static std::map<std::tuple<DType, DeviceKind, int>, double> measured;
  double& rate = measured[{type, device.kind, device.index}];
  if (rate == 0) rate = ops::measure_product_rate(type, {.seconds = 0.1, .device = device});
  return rate;
}

}  // namespace

std::string directory_of(const config::RunConfig& run) {
  return run.log.directory + "/" + run.name;
}

PreparedRun::PreparedRun(comm::World& world, FullConfig full_config, bool verify_data)
    : world(world),
      config(std::move(full_config)),
      layout(checked_layout(config, world)),
      directory(directory_of(config.run)),
      device(choose_device(config.run, world)),
      environment(environment_text(world, device, layout)),
      decoder(config.model),
      training_data(open_training_data(config)),
      order(training_data.training_order(uint64_t(config.run.seed))),
      data_fingerprint(training_data.fingerprint_text(uint64_t(config.run.seed))),
      mesh(world.all(), int(layout.tensor)),
      group(mesh.tensor()),
      sizes(batch_sizes(config, layout)),
      speaker(world.rank() == 0) {
  training_data.check_batch(config.run.batch.sequences);
  comm::require_same(world.all(), "training data", data_fingerprint);
  if (config.run.data.valid) {
    validation_data.emplace(open_validation_data(config));
    check_held_out(training_data, *validation_data);
    comm::require_same(world.all(), "held-out data", validation_data->fingerprint_text(uint64_t(config.run.seed)));
  }
  if (!config.run.data.verify || !verify_data) return;
  verify_ids(training_data, world);
  if (validation_data) verify_ids(*validation_data, world);
}

void PreparedRun::allocate_model() {
  decoder.allocate(decoder_layout(config, {device, mesh, group}, sizes.shape(), true));
}

void PreparedRun::announce() {
  const models::ModelCost cost = decoder.cost(sizes.length);
  log::info("{}: {} parameters ({} in QK-Norm), {} ranks = tensor {} x data {}, {} threads each, {}, on {}",
            config.run.name, human_count(double(cost.parameters)), human_count(double(cost.qk_norm_parameters)),
            world.size(), layout.tensor, layout.data, world.threads(), name_of(activation_type(config)), device.text());
  for (const std::string& line : training_data.source_lines()) log::info("{}", line);
  log::info("a step: {} sequences of {} tokens, {} micro-steps of {} on each data rank", config.run.batch.sequences,
            sizes.length, sizes.micro_steps, sizes.micro_sequences);
  int64_t decayed = 0, plain = 0;
  for (const nn::Parameter& parameter : decoder.parameters().all())
    (parameter.spec.decayed ? decayed : plain) += parameter.spec.shape.elements();
  log::info("config, where it is not the default: {}", fmt::join(chosen_keys(config), " "));
  log::info("all of the config: {}/config.yaml", directory);
  log::info("weight decay on {} weights, none on the other {}", human_count(double(decayed)),
            human_count(double(plain)));
}

train::Throughput PreparedRun::throughput() {
  const models::ModelCost cost = decoder.cost(sizes.length);
  return {
      .operations_full = cost.operations_full(),
      .operations_causal = cost.operations_causal(),
      .peak_operations_per_second = comm::all_reduce_value(world.all(), peak_rate(activation_type(config), device))};
}

int64_t PreparedRun::memory_bytes() {
  return decoder.planned_bytes(config.run.parallel.zero ? layout.data : 1);
}

}  // namespace keel
