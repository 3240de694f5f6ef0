#include "checkpoints/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <map>

#include "checkpoints/agreement.h"
#include "checkpoints/tile_exchange.h"
#include "checkpoints/user_block.h"
#include "framework/io/crc32c.h"
#include "framework/io/files.h"
#include "framework/io/hdf5.h"

namespace keel::checkpoints {
namespace {

std::vector<uint64_t> dims_of(const Shape& shape) {
  return {shape.sizes().begin(), shape.sizes().end()};
}

io::Slab slab_of(const Shape& shape, const Tiling& tiling, int64_t tile) {
  io::Slab slab{std::vector<uint64_t>(size_t(shape.dims()), 0), dims_of(shape)};
  slab.offset[0] = uint64_t(tiling.first_row(tile));
  slab.count[0] = uint64_t(tiling.rows(tile));
  return slab;
}

// The file while it is written. Lives on the I/O thread; every member is called by all ranks.
class OpenCheckpoint {
 public:
  OpenCheckpoint(io::IoContext& context, const std::string& path, const LocalTensors& tensors,
                 const WriteOptions& options, uint64_t block_bytes);
  void write_state(const RunState& state);
  void write_tile(const FilledTile& filled);
  // Returns where the raw tiles lie. Closes even where it throws: the other ranks wait for that.
  std::vector<ByteRange> close();

 private:
  struct Arrays {
    io::Dataset values, checksums;
  };
  int64_t tile_elements_;
  io::File file_;
  std::map<std::string, Arrays> arrays_;
};

OpenCheckpoint::OpenCheckpoint(io::IoContext& context, const std::string& path, const LocalTensors& tensors,
                               const WriteOptions& options, uint64_t block_bytes)
    : tile_elements_(options.tile_elements),
      file_(io::File::create(
          context, path,
          {.communicator = options.io_comm, .mpi_hints = options.mpi_hints, .user_block_bytes = block_bytes})) {
  for (const nn::Parameter& parameter : tensors.parameters.all()) {
    for (Part part : tensors.parts()) {
      const std::string name = path_of(part, parameter.spec.name);
      const std::vector<uint64_t> tiles = {uint64_t(Tiling(parameter.spec.shape, tile_elements_).tiles())};
      arrays_[name] = {file_.create_dataset<float>(name, dims_of(parameter.spec.shape), {.fill = false}),
                       file_.create_dataset<uint32_t>(checksums_of(part, parameter.spec.name), tiles, {.fill = false})};
    }
  }
}

void OpenCheckpoint::write_state(const RunState& state) {
  file_.write_scalar<int64_t>("format_version", kFormatVersion);
  file_.write_scalar<int64_t>("tile_elements", tile_elements_);
  file_.write_scalar<int64_t>("run/step", state.progress.step);
  file_.write_scalar<int64_t>("run/updates", state.progress.updates);
  file_.write_scalar<int64_t>("run/tokens_consumed", state.progress.tokens_consumed);
  const std::vector<int64_t> samples = state.progress.samples.to_numbers();
  const std::vector<uint64_t> count = {samples.size()};
  io::Dataset dataset = file_.create_dataset<int64_t>("run/samples", count);
  // One rank's numbers are everyone's: written by all to the same place.
  dataset.write<int64_t>(samples);
  file_.write_text("run/config", state.config);
  file_.write_text("run/environment", state.environment);
  file_.write_text("run/data_fingerprint", state.data_fingerprint);
  file_.write_text("run/qk_norm", state.qk_norm);
  file_.write_text("run/hooks", state.hooks);
}

void OpenCheckpoint::write_tile(const FilledTile& filled) {
  const nn::Parameter& parameter = *filled.tile.parameter;
  const std::string name = path_of(filled.tile.part, parameter.spec.name);
  for (float value : filled.values)
    if (!std::isfinite(value))
      throw Error(ErrorKind::unstable,
                  fmt::format("{} holds {}: a state that is not finite is not saved", name, value));
  Arrays& arrays = arrays_.at(name);
  const Tiling tiling(parameter.spec.shape, tile_elements_);
  arrays.values.write<float>(filled.values, slab_of(parameter.spec.shape, tiling, filled.tile.index));
  const uint32_t crc = io::crc32c(std::as_bytes(std::span(filled.values)));
  arrays.checksums.write<uint32_t>(std::span(&crc, 1), {{uint64_t(filled.tile.index)}, {1}});
}

std::vector<ByteRange> OpenCheckpoint::close() {
  std::vector<ByteRange> ranges;
  std::exception_ptr failed;
  try {
    for (auto& [name, arrays] : arrays_)
      ranges.push_back({arrays.values.file_offset_bytes(), arrays.values.elements() * sizeof(float)});
    file_.flush();
  } catch (...) {
    failed = std::current_exception();
  }
  arrays_.clear();
  try {
    file_.close();
  } catch (...) {
    if (!failed) failed = std::current_exception();
  }
  if (failed) std::rethrow_exception(failed);
  return ranges;
}

// What the file will take, texts and metadata generously.
uint64_t expected_bytes(const LocalTensors& tensors, const RunState& state, int64_t tile_elements) {
  uint64_t bytes = (uint64_t(1) << 20) + 2 * (state.config.size() + state.environment.size() +
                                              state.data_fingerprint.size() + state.hooks.size());
  for (const nn::Parameter& parameter : tensors.parameters.all())
    bytes +=
        tensors.parts().size() *
        (4 * uint64_t(parameter.spec.shape.elements() + Tiling(parameter.spec.shape, tile_elements).tiles()) + 4096);
  return bytes;
}

// Texts may differ between ranks (hosts do), and HDF5 wants the same calls of all: rank 0's are the file's.
RunState as_on_rank_0(comm::Communicator& world, RunState state) {
  for (std::string* text : {&state.config, &state.environment, &state.data_fingerprint, &state.qk_norm, &state.hooks})
    *text = comm::broadcast_text(world, *text);
  return state;
}

// The disk has room, and every rank can open what rank 0 made. What HDF5 finds out later may leave ranks waiting.
void prepare(comm::Communicator& world, const std::string& temporary, uint64_t bytes) {
  together(world, [&] {
    if (world.rank() == 0) io::reserve_disk(temporary, bytes);
  });
  together(world, [&] {
    try {
      io::Descriptor(temporary, O_RDWR, "cannot open for writing");
    } catch (const Error& error) {
      throw Error(error.kind(),
                  fmt::format("rank {}: {}; every rank must see the same files", world.rank(), error.what()));
    }
  });
}

}  // namespace

int64_t write_checkpoint(comm::Communicator& world, io::IoThread& io, const LocalTensors& tensors,
                         const RunState& own_state, const WriteOptions& options) {
  require(world.size() == 1 || options.io_comm != MPI_COMM_NULL, "{} ranks write a file without a communicator for it",
          world.size());
  const RunState state = as_on_rank_0(world, own_state);
  const uint64_t expected = expected_bytes(tensors, state, options.tile_elements);
  const std::string temporary = options.path + ".writing";
  const uint64_t tensors_in_file = tensors.parameters.all().size() * tensors.parts().size();
  const uint64_t block_bytes = user_block_bytes(tensors_in_file);
  std::unique_ptr<OpenCheckpoint> file;
  std::vector<ByteRange> ranges;
  try {
    prepare(world, temporary, expected);
    together(world, [&] {
      io.run([&](io::IoContext& context) {
        file = std::make_unique<OpenCheckpoint>(context, temporary, tensors, options, block_bytes);
        file->write_state(state);
      });
    });
    // Creating the file gave the room back; closing it cuts off what is too much.
    together(world, [&] {
      if (world.rank() == 0) io::reserve_disk(temporary, expected);
    });
    TileExchange exchange(world, tensors, options.tile_elements);
    for (int64_t round = 0; round < exchange.rounds(); ++round)
      together(world, [&] {
        const std::vector<FilledTile> filled = exchange.round(round);
        io.run([&](io::IoContext&) {
          for (const FilledTile& tile : filled) file->write_tile(tile);
        });
      });
    together(world, [&] {
      io.run([&](io::IoContext&) {
        ranges = file->close();
        file.reset();
      });
    });
    together(world, [&] {
      if (world.rank() != 0) return;
      write_user_block(temporary, block_bytes, ranges);
      io::rename_file(temporary, options.path);
    });
  } catch (...) {
    if (world.rank() == 0) ::unlink(temporary.c_str());
    // Left open until the process ends: closing is collective, and where one rank's writes have failed MPI-IO may let
    // the others wait in it for ever.
    file.release();
    throw;
  }
  int64_t bytes = 0;
  if (world.rank() == 0) bytes = int64_t(io::Descriptor(options.path, 0, "cannot open").size_bytes());
  return comm::all_reduce_value(world, bytes, comm::Reduction::max);
}

}  // namespace keel::checkpoints
