#include "framework/parallel/pieces.h"

namespace keel::parallel {

std::vector<nn::ArenaRange> pieces_of(nn::ParameterSet& parameters, nn::AxisPosition data) {
  std::vector<nn::ArenaRange> pieces;
  for (size_t a = 0; a < parameters.arenas().size(); ++a) {
    int64_t begin = 0;
    for (int64_t end : parameters.arenas()[a].bucket_ends) {
      const int64_t share = (end - begin) / data.size;
      pieces.push_back({int(a), begin + data.index * share, begin + (data.index + 1) * share});
      begin = end;
    }
  }
  return pieces;
}

}  // namespace keel::parallel
