#include "launch/common/loaded_model.h"

#include "framework/comm/agreement.h"
#include "launch/common/choose_device.h"
#include "models/decoder/parallelize.h"

namespace keel {
namespace {

// Once the sizes are known to divide: what can be refused is refused before a device is touched.
Device device_for(comm::World& world, const LoadOptions& options, const FullConfig& config) {
  checked_tensor(world, config.model, options.tensor);
  return choose_device(config.run, world);
}

train::BatchSizes sizes_of(const FullConfig& config, const LoadOptions& options) {
  train::BatchSizes sizes{.micro_sequences = options.sequences, .length = options.length, .micro_steps = 1};
  if (sizes.length == 0) sizes.length = config.run.data.sequence_length;
  if (sizes.micro_sequences == 0) sizes.micro_sequences = std::max<int64_t>(1, 4096 / sizes.length);
  return sizes;
}

}  // namespace

FullConfig stored_config(io::IoThread& io, const std::string& path, std::span<const std::string> overrides) {
  return parse_full_config(checkpoints::read_contents(io, path).state.config, path, overrides);
}

FullConfig stored_config(comm::World& world, const std::string& path, std::span<const std::string> overrides) {
  const std::string text = world.on_rank_0([&] {
    io::IoThread io;
    return checkpoints::read_contents(io, path).state.config;
  });
  return parse_full_config(text, path, overrides);
}

int checked_tensor(const comm::World& world, const models::DecoderConfig& model, int tensor) {
  if (world.size() % tensor != 0)
    throw input_error("{} ranks do not divide into tensor groups of {}", world.size(), tensor);
  models::check_tensor_ranks(model, tensor, config::Node()["tensor"]);
  return tensor;
}

LoadedModel::LoadedModel(comm::World& world, const LoadOptions& options)
    : config(stored_config(world, options.path, options.overrides)),
      sizes(sizes_of(config, options)),
      device(device_for(world, options, config)),
      mesh(world.all(), options.tensor),
      group(mesh.tensor()),
      decoder(config.model) {
  decoder.allocate(decoder_layout(config, {device, mesh, group}, sizes.shape(), false));
  io::IoThread io;
  comm::together(world.all(), [&] { step = checkpoints::read_contents(io, options.path).state.progress.step; });
  checkpoints::read_tensors(io, options.path, {decoder.parameters()}, models::qk_norm_text(config.model),
                            {.agreeing = &world.all()});
  decoder.parameters().round_to_compute();
  decoder.refresh();
}

}  // namespace keel
