#include "checkpoints/tile_exchange.h"

#include <algorithm>

namespace keel::checkpoints {
namespace {

constexpr int64_t kTilesOfAWriter = 8;  // per round: 8 MiB to write, and at most as much on its way

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
      per_round_(kTilesOfAWriter * writers) {
  for (const nn::Parameter& parameter : tensors.parameters.all())
    for (Part part : tensors.parts())
      for (int64_t i = 0; i < Tiling(parameter.spec.shape, tile_elements).tiles(); ++i)
        tiles_.push_back({&parameter, part, i, int64_t(tiles_.size())});
}

int64_t TileExchange::rounds() const {
  return (int64_t(tiles_.size()) + per_round_ - 1) / per_round_;
}

const std::vector<Run>& TileExchange::runs_of(const Tile& tile) {
  if (runs_parameter_ != tile.parameter || runs_part_ != tile.part)
    runs_ = runs_to_write(tensors_, *tile.parameter, tile.part);
  runs_parameter_ = tile.parameter;
  runs_part_ = tile.part;
  return runs_;
}

void TileExchange::add_pieces(const Tile& tile, int64_t place, Outgoing& outgoing) {
  const Tiling tiling(tile.parameter->spec.shape, tile_elements_);
  const int64_t begin = tiling.begin(tile.index), end = begin + tiling.elements(tile.index);
  const std::vector<Run>& runs = runs_of(tile);
  auto run = std::lower_bound(runs.begin(), runs.end(), begin, [](const Run& r, int64_t at) { return r.end() <= at; });
  for (; run != runs.end() && run->logical < end; ++run) {
    const int64_t first = std::max(begin, run->logical), last = std::min(end, run->end());
    outgoing.headers.insert(outgoing.headers.end(), {place, first - begin, last - first});
    const float* data = run->data + (first - run->logical);
    outgoing.values.insert(outgoing.values.end(), data, data + (last - first));
  }
}

std::vector<FilledTile> TileExchange::round(int64_t round) {
  const int64_t first = round * per_round_, last = std::min(int64_t(tiles_.size()), first + per_round_);
  const size_t ranks = size_t(world_.size());
  std::vector<Outgoing> outgoing(ranks), incoming(ranks);
  std::vector<FilledTile> filled;
  std::vector<int64_t> covered;
  for (int64_t i = first; i < last; ++i) {
    const Tile& tile = tiles_[size_t(i)];
    const int64_t writer = tile.number % writers_;
    add_pieces(tile, i - first, outgoing[size_t(writer)]);
    if (writer != world_.rank()) continue;
    const Tiling tiling(tile.parameter->spec.shape, tile_elements_);
    filled.push_back({tile, std::vector<float>(size_t(tiling.elements(tile.index)))});
  }
  covered.resize(filled.size());

  std::vector<int64_t> sizes(2 * ranks), their_sizes(2 * ranks);
  for (size_t r = 0; r < ranks; ++r) {
    sizes[2 * r] = int64_t(outgoing[r].headers.size());
    sizes[2 * r + 1] = int64_t(outgoing[r].values.size());
  }
  world_.all_to_all(flat(their_sizes), flat(sizes));
  std::vector<comm::Request> requests;
  for (size_t r = 0; r < ranks; ++r) {
    incoming[r].headers.resize(size_t(their_sizes[2 * r]));
    incoming[r].values.resize(size_t(their_sizes[2 * r + 1]));
    if (!incoming[r].headers.empty()) {
      requests.push_back(world_.start_recv(flat(incoming[r].headers), int(r)));
      requests.push_back(world_.start_recv(flat(incoming[r].values), int(r)));
    }
    if (!outgoing[r].headers.empty()) {
      requests.push_back(world_.start_send(flat(outgoing[r].headers), int(r)));
      requests.push_back(world_.start_send(flat(outgoing[r].values), int(r)));
    }
  }
  for (comm::Request& request : requests) request.wait();
  for (const Outgoing& part : incoming) place(filled, first, part, covered);
  for (size_t i = 0; i < filled.size(); ++i)
    require(covered[i] == int64_t(filled[i].values.size()), "{}: tile {} got {} of {} elements",
            path_of(filled[i].tile.part, filled[i].tile.parameter->spec.name), filled[i].tile.index, covered[i],
            filled[i].values.size());
  return filled;
}

void TileExchange::place(std::vector<FilledTile>& filled, int64_t first, const Outgoing& incoming,
                         std::vector<int64_t>& covered) const {
  size_t at = 0;
  for (size_t h = 0; h < incoming.headers.size(); h += 3) {
    const int64_t number = first + incoming.headers[h], begin = incoming.headers[h + 1],
                  count = incoming.headers[h + 2];
    auto tile =
        std::find_if(filled.begin(), filled.end(), [&](const FilledTile& f) { return f.tile.number == number; });
    require(tile != filled.end() && begin + count <= int64_t(tile->values.size()),
            "a piece of tile {} came to the wrong rank", number);
    std::copy_n(incoming.values.begin() + int64_t(at), count, tile->values.begin() + begin);
    covered[size_t(tile - filled.begin())] += count;
    at += size_t(count);
  }
}

}  // namespace keel::checkpoints
