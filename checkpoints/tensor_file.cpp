#include "checkpoints/tensor_file.h"

#include <cmath>

#include "framework/io/crc32c.h"

namespace keel::checkpoints {

std::vector<uint64_t> dims_of(const Shape& shape) {
  return {shape.sizes().begin(), shape.sizes().end()};
}

io::Slab slab_of(const Shape& shape, const Tiling& tiling, int64_t tile) {
  io::Slab slab{std::vector<uint64_t>(size_t(shape.dims()), 0), dims_of(shape)};
  slab.offset[0] = uint64_t(tiling.first_row(tile));
  slab.count[0] = uint64_t(tiling.rows(tile));
  return slab;
}

void write_format(io::File& file, int64_t tile_elements) {
  file.write_scalar<int64_t>("format_version", kFormatVersion);
  file.write_scalar<int64_t>("tile_elements", tile_elements);
}

void write_state(io::File& file, const RunState& state) {
  file.write_scalar<int64_t>("run/step", state.progress.step);
  file.write_scalar<int64_t>("run/updates", state.progress.updates);
  file.write_scalar<int64_t>("run/tokens_consumed", state.progress.tokens_consumed);
  const std::vector<int64_t> samples = state.progress.samples.to_numbers();
  const std::vector<uint64_t> count = {samples.size()};
  file.create_dataset<int64_t>("run/samples", count).write<int64_t>(samples);
  file.write_text("run/config", state.config);
  file.write_text("run/environment", state.environment);
  file.write_text("run/data_fingerprint", state.data_fingerprint);
  file.write_text("run/qk_norm", state.qk_norm);
  file.write_text("run/hooks", state.hooks);
  if (state.probe.empty()) return;
  const std::vector<uint64_t> length = {state.probe.tokens.size()};
  file.create_dataset<int32_t>("probe/tokens", length).write<int32_t>(state.probe.tokens);
  file.create_dataset<int32_t>("probe/targets", length).write<int32_t>(state.probe.targets);
  file.write_scalar<double>("probe/loss", state.probe.loss);
}

std::vector<ByteRange> create_tensors(io::File& file, const std::vector<LogicalTensor>& tensors,
                                      int64_t tile_elements) {
  std::vector<ByteRange> ranges;
  for (const LogicalTensor& tensor : tensors) {
    const std::vector<uint64_t> tiles = {uint64_t(Tiling(tensor.shape(), tile_elements).tiles())};
    const io::Dataset values = file.create_dataset<float>(tensor.path(), dims_of(tensor.shape()), {.fill = false});
    file.create_dataset<uint32_t>(tensor.checksums(), tiles, {.fill = false});
    ranges.push_back({values.file_offset_bytes(), values.elements() * sizeof(float)});
  }
  return ranges;
}

void TensorFile::write(const FilledTile& filled) {
  const LogicalTensor& tensor = filled.tile.tensor;
  const std::string name = tensor.path();
  for (float value : filled.values)
    if (!std::isfinite(value))
      throw Error(ErrorKind::unstable,
                  fmt::format("{} holds {}: a state that is not finite is not saved", name, value));
  auto found = arrays_.find(name);
  if (found == arrays_.end())
    found = arrays_.emplace(name, Arrays{file_.open_dataset(name), file_.open_dataset(tensor.checksums())}).first;
  const Tiling tiling(tensor.shape(), tile_elements_);
  found->second.values.write<float>(filled.values, slab_of(tensor.shape(), tiling, filled.tile.index));
  const uint32_t crc = io::crc32c(std::as_bytes(std::span(filled.values)));
  found->second.checksums.write<uint32_t>(std::span(&crc, 1), {{uint64_t(filled.tile.index)}, {1}});
}

void TensorFile::close() {
  arrays_.clear();
  file_.close();
}

}  // namespace keel::checkpoints
