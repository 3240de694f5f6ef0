// Brings the pieces of tiles from the ranks that hold them to the rank that writes them.
#pragma once

#include "checkpoints/local_runs.h"
#include "framework/comm/communicator.h"

namespace keel::checkpoints {

// One tile of one tensor, numbered through the whole file; rank `number % writers` writes it.
struct Tile {
  LogicalTensor tensor;
  int64_t index = 0;  // within its tensor
  int64_t number = 0;
};

// A tile that this rank writes, complete.
struct FilledTile {
  Tile tile;
  std::vector<float> values;
  int64_t covered = 0;  // elements that have come
};

class TileExchange {
 public:
  // Everything outlives this. All ranks pass the same parameters. The first `writers` ranks get tiles to write.
  // Collective.
  TileExchange(comm::Communicator& world, int writers, const LocalTensors& tensors, int64_t tile_elements);
  // At most 8 of each rank that writes, and 128 of each that holds what others write: a tile has 1 MiB, so memory stays
  // small beside training, and the rounds few, in each of which all ranks meet.
  static int64_t tiles_of_a_round(int64_t writers, int64_t holders);

  // Every tile of the file, in order.
  const std::vector<Tile>& tiles() const { return tiles_; }
  // Rounds of a bounded number of tiles per rank that writes or holds them; collective. Throws an internal error where
  // a tile is not covered exactly.
  int64_t rounds() const;
  std::vector<FilledTile> round(int64_t round);

 private:
  // Pieces of tiles on their way from one rank to another.
  struct Pieces {
    std::vector<int64_t> headers;  // {tile number, first element in tile, count} of each
    std::vector<float> values;
  };
  void add_pieces(const Tile& tile, Pieces& pieces);
  const std::vector<Run>& runs_of(const Tile& tile);
  std::vector<Pieces> exchange(std::vector<Pieces>& to) const;
  static void place(std::vector<FilledTile>& filled, const Pieces& pieces);

  comm::Communicator& world_;
  int writers_;
  LocalTensors tensors_;
  int64_t tile_elements_, per_round_;
  std::vector<Tile> tiles_;
  // The runs of the tensor last asked for: tiles come tensor by tensor.
  LogicalTensor runs_tensor_;
  std::vector<Run> runs_;
};

}  // namespace keel::checkpoints
