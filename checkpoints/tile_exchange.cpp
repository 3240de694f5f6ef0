#include "checkpoints/tile_exchange.h"

#include <algorithm>
#include <span>

namespace keel::checkpoints {
namespace {

// Ranks that have something to write.
int64_t holders(comm::Communicator& world, const LocalTensors& tensors) {
  const bool holds = std::ranges::any_of(
      tensors_of(tensors), [&](const LogicalTensor& tensor) { return !runs_to_write(tensors, tensor).empty(); });
  return std::max<int64_t>(1, comm::all_reduce_value(world, int64_t(holds)));
}

template <class T>
Tensor flat(std::vector<T>& values) {
  return Tensor(values.data(), {int64_t(values.size())}, dtype_of<T>());
}

}  // namespace

TileExchange::TileExchange(comm::Communicator& world, int writers, const LocalTensors& tensors, int64_t tile_elements)
    : world_(world),
      writers_(writers),
      tensors_(tensors),
      tile_elements_(tile_elements),
      per_round_(tiles_of_a_round(writers, holders(world, tensors))) {
  for (const LogicalTensor& tensor : tensors_of(tensors))
    for (int64_t i = 0; i < Tiling(tensor.shape(), tile_elements).tiles(); ++i)
      tiles_.push_back({tensor, i, int64_t(tiles_.size())});
}

int64_t TileExchange::tiles_of_a_round(int64_t writers, int64_t holders) {
  return std::min(8 * writers, 128 * holders);
}

int64_t TileExchange::rounds() const {
  return (int64_t(tiles_.size()) + per_round_ - 1) / per_round_;
}

const std::vector<Run>& TileExchange::runs_of(const Tile& tile) {
  if (runs_tensor_ != tile.tensor) runs_ = runs_to_write(tensors_, tile.tensor);
  runs_tensor_ = tile.tensor;
  return runs_;
}

void TileExchange::add_pieces(const Tile& tile, Pieces& pieces) {
  const Tiling tiling(tile.tensor.shape(), tile_elements_);
  const int64_t begin = tiling.begin(tile.index), end = begin + tiling.elements(tile.index);
  const std::vector<Run>& runs = runs_of(tile);
  auto run = std::lower_bound(runs.begin(), runs.end(), begin, [](const Run& r, int64_t at) { return r.end() <= at; });
  for (; run != runs.end() && run->logical < end; ++run) {
    const int64_t first = std::max(begin, run->logical), last = std::min(end, run->end());
    pieces.headers.insert(pieces.headers.end(), {tile.number, first - begin, last - first});
    const float* data = run->data + (first - run->logical);
    pieces.values.insert(pieces.values.end(), data, data + (last - first));
  }
}

std::vector<FilledTile> TileExchange::round(int64_t round) {
  const int64_t first = round * per_round_, last = std::min(int64_t(tiles_.size()), first + per_round_);
  std::vector<Pieces> to(size_t(world_.size()));
  std::vector<FilledTile> filled;
  for (const Tile& tile : std::span(tiles_).subspan(size_t(first), size_t(last - first))) {
    const int64_t writer = tile.number % writers_;
    add_pieces(tile, to[size_t(writer)]);
    if (writer != world_.rank()) continue;
    const Tiling tiling(tile.tensor.shape(), tile_elements_);
    filled.push_back({tile, std::vector<float>(size_t(tiling.elements(tile.index)))});
  }
  for (const Pieces& pieces : exchange(to)) place(filled, pieces);
  for (const FilledTile& one : filled)
    require(one.covered == int64_t(one.values.size()), "{}: tile {} got {} of {} elements", one.tile.tensor.path(),
            one.tile.index, one.covered, one.values.size());
  return filled;
}

// What every rank has sent to this one.
std::vector<TileExchange::Pieces> TileExchange::exchange(std::vector<Pieces>& to) const {
  const size_t ranks = to.size();
  std::vector<int64_t> sizes(2 * ranks), their_sizes(2 * ranks);
  for (size_t r = 0; r < ranks; ++r) {
    sizes[2 * r] = int64_t(to[r].headers.size());
    sizes[2 * r + 1] = int64_t(to[r].values.size());
  }
  world_.all_to_all(flat(their_sizes), flat(sizes));
  std::vector<Pieces> from(ranks);
  std::vector<comm::Request> requests;
  for (size_t r = 0; r < ranks; ++r) {
    from[r].headers.resize(size_t(their_sizes[2 * r]));
    from[r].values.resize(size_t(their_sizes[2 * r + 1]));
    if (!from[r].headers.empty()) {
      requests.push_back(world_.start_recv(flat(from[r].headers), int(r)));
      requests.push_back(world_.start_recv(flat(from[r].values), int(r)));
    }
    if (!to[r].headers.empty()) {
      requests.push_back(world_.start_send(flat(to[r].headers), int(r)));
      requests.push_back(world_.start_send(flat(to[r].values), int(r)));
    }
  }
  for (comm::Request& request : requests) request.wait();
  return from;
}

void TileExchange::place(std::vector<FilledTile>& filled, const Pieces& pieces) {
  const float* values = pieces.values.data();
  for (size_t h = 0; h < pieces.headers.size(); h += 3) {
    const int64_t number = pieces.headers[h], begin = pieces.headers[h + 1], count = pieces.headers[h + 2];
    auto tile = std::ranges::find_if(filled, [&](const FilledTile& one) { return one.tile.number == number; });
    require(tile != filled.end() && begin + count <= int64_t(tile->values.size()),
            "a piece of tile {} came to the wrong rank", number);
    std::copy_n(values, count, tile->values.begin() + begin);
    tile->covered += count;
    values += count;
  }
}

}  // namespace keel::checkpoints
