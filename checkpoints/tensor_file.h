// One file of tensors while it is written. Rank 0 alone creates it, with everything that HDF5 has to keep about it;
// then all ranks open it together and do nothing but write tiles, each by itself. So a write that fails on one rank
// fails there and nowhere else, and leaves no rank waiting.
#pragma once

#include <mpi.h>

#include <map>

#include "checkpoints/tile_exchange.h"
#include "checkpoints/user_block.h"
#include "framework/io/hdf5.h"

namespace keel::checkpoints {

std::vector<uint64_t> dims_of(const Shape& shape);
// Where a tile lies in its tensor's dataset.
io::Slab slab_of(const Shape& shape, const Tiling& tiling, int64_t tile);

// Every file of a checkpoint has these.
void write_format(io::File& file, int64_t tile_elements);
void write_state(io::File& file, const RunState& state);

// Adds the tensors, without values, and returns where these will lie.
std::vector<ByteRange> create_tensors(io::File& file, const std::vector<LogicalTensor>& tensors, int64_t tile_elements);

class TensorFile {
 public:
  // Collective over the communicator in `options`; so is close().
  TensorFile(io::IoContext& context, const std::string& path, const io::FileOptions& options, int64_t tile_elements)
      : file_(io::File::open(context, path, io::Access::read_write, options)), tile_elements_(tile_elements) {}
  // Values and checksum. Not collective. Refuses values that are not finite.
  void write(const FilledTile& filled);
  void close();

 private:
  struct Arrays {
    io::Dataset values, checksums;
  };
  io::File file_;
  int64_t tile_elements_;
  std::map<std::string, Arrays> arrays_;  // that this rank has written to
};

}  // namespace keel::checkpoints
