#include "launch/convert/loaded_state.h"

#include <algorithm>

namespace keel {
namespace {

std::vector<nn::ArenaRange> everything(nn::ParameterSet& parameters) {
  std::vector<nn::ArenaRange> spans;
  for (size_t i = 0; i < parameters.arenas().size(); ++i)
    spans.push_back({.arena = int(i), .begin = 0, .end = parameters.arenas()[i].elements});
  return spans;
}

void copy_values(const Tensor& to, const Tensor& from) {
  std::copy_n(from.as<float>(), from.elements(), to.as<float>());
}

}  // namespace

LoadedState::LoadedState(comm::World& world, FullConfig full, int tensor, nn::BatchShape batch, bool training)
    : config(std::move(full)),
      mesh(world.all(), checked_tensor(world, config.model, tensor)),
      group(mesh.tensor()),
      decoder(config.model),
      world_(world) {
  decoder.allocate(decoder_layout(config, {{}, mesh, group}, batch, training));
  optimizer_.emplace(decoder.parameters(), everything(decoder.parameters()), ops::AdamwOptions{});
}

void LoadedState::read(const std::string& path) {
  io::IoThread io;
  run = checkpoints::read_contents(io, path).state;
  checkpoints::read_tensors(io, path, {decoder.parameters(), has_moments() ? &*optimizer_ : nullptr, false},
                            models::qk_norm_text(config.model));
  decoder.parameters().round_to_compute();
  decoder.refresh();
}

void LoadedState::take(const LoadedState& other) {
  run = other.run;
  run.config = config.text();
  run.qk_norm = models::qk_norm_text(config.model);
  run.probe = {};  // the loss that it holds is the other model's
  for (nn::Parameter& parameter : decoder.parameters().all())
    for (const nn::Parameter& source : other.decoder.parameters().all()) {
      if (source.spec.name != parameter.spec.name || source.spec.shape != parameter.spec.shape) continue;
      copy_values(parameter.master, source.master);
      if (!has_moments()) continue;
      for (checkpoints::TensorKind kind : {checkpoints::TensorKind::moment1, checkpoints::TensorKind::moment2})
        copy_values(moment(parameter, kind), other.moment(source, kind));
    }
}

int64_t LoadedState::write(const std::string& path) {
  io::IoThread io;
  const checkpoints::LocalTensors tensors{.parameters = decoder.parameters(),
                                          .optimizer = has_moments() ? &*optimizer_ : nullptr,
                                          .data_replica = mesh.data().rank() != 0};
  return checkpoints::write_checkpoint(world_.all(), io, tensors, run, {.path = path, .io_comm = world_.io_comm()});
}

nn::Parameter& LoadedState::parameter(int64_t layer, const std::string& name) {
  return decoder.parameters().at(fmt::format("blocks.{}.{}", layer, name));
}

Tensor LoadedState::moment(const nn::Parameter& parameter, checkpoints::TensorKind kind) const {
  const size_t span = size_t(parameter.arena);  // one span per arena
  const Tensor all = kind == checkpoints::TensorKind::moment1 ? optimizer_->moment1(span) : optimizer_->moment2(span);
  const int64_t begin = parameter.offset_elements;
  return all.slice(0, begin, begin + parameter.local.elements()).reshaped(parameter.local);
}

}  // namespace keel
