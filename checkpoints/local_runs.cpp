#include "checkpoints/local_runs.h"

#include <algorithm>

namespace keel::checkpoints {
namespace {

// The runs of the shard, cut to local elements [begin, end) of the parameter, whose first lies at `data`.
void append(std::vector<Run>& runs, const nn::Parameter& parameter, int64_t begin, int64_t end, float* data) {
  nn::for_each_run(parameter, [&](int64_t logical, int64_t local, int64_t count) {
    const int64_t first = std::max(begin, local), last = std::min(end, local + count);
    if (first < last) runs.push_back({logical + first - local, data + (first - begin), last - first});
  });
}

std::vector<Run> in_order(std::vector<Run> runs) {
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.logical < b.logical; });
  return runs;
}

std::vector<Run> runs_in_spans(const LocalTensors& tensors, const nn::Parameter& parameter, Part part) {
  std::vector<Run> runs;
  const optim::Adamw& optimizer = *tensors.optimizer;
  for (size_t i = 0; i < optimizer.spans().size(); ++i) {
    const optim::Span& span = optimizer.spans()[i];
    const int64_t offset = parameter.offset_elements;
    const int64_t begin = std::max(span.begin, offset), end = std::min(span.end, offset + parameter.local.elements());
    if (span.arena != parameter.arena || begin >= end) continue;
    float* data = part == Part::weight    ? parameter.master.as<float>() + (begin - offset)
                  : part == Part::moment1 ? optimizer.moment1(i).as<float>() + (begin - span.begin)
                                          : optimizer.moment2(i).as<float>() + (begin - span.begin);
    append(runs, parameter, begin - offset, end - offset, data);
  }
  return runs;
}

std::vector<Run> whole_shard(const nn::Parameter& parameter) {
  std::vector<Run> runs;
  append(runs, parameter, 0, parameter.local.elements(), parameter.master.as<float>());
  return in_order(std::move(runs));
}

}  // namespace

std::vector<Part> LocalTensors::parts() const {
  if (!optimizer || weights_only) return {Part::weight};
  return {Part::weight, Part::moment1, Part::moment2};
}

std::vector<Run> runs_to_write(const LocalTensors& tensors, const nn::Parameter& parameter, Part part) {
  if (!parameter.first_replica() || tensors.data_replica) return {};
  return tensors.optimizer ? in_order(runs_in_spans(tensors, parameter, part)) : whole_shard(parameter);
}

std::vector<Run> runs_to_read(const LocalTensors& tensors, const nn::Parameter& parameter, Part part) {
  return part == Part::weight ? whole_shard(parameter) : in_order(runs_in_spans(tensors, parameter, part));
}

}  // namespace keel::checkpoints
