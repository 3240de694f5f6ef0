#include "checkpoints/local_runs.h"

#include <algorithm>

#include "framework/ops/support/threads.h"
#include "framework/tensor/copy.h"

namespace keel::checkpoints {
namespace {

constexpr int64_t kPieceElements = int64_t(1) << 20;  // of a copy: pieces are what threads divide

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

std::vector<Run> runs_in_spans(const LocalTensors& tensors, const LogicalTensor& tensor) {
  std::vector<Run> runs;
  const nn::Parameter& parameter = *tensor.parameter;
  const optim::Adamw& optimizer = *tensors.optimizer;
  for (size_t i = 0; i < optimizer.spans().size(); ++i) {
    const nn::ArenaRange& span = optimizer.spans()[i];
    const int64_t offset = parameter.offset_elements;
    const int64_t begin = std::max(span.begin, offset), end = std::min(span.end, offset + parameter.local.elements());
    if (span.arena != parameter.arena || begin >= end) continue;
    float* data = tensor.kind == TensorKind::weight    ? parameter.master.as<float>() + (begin - offset)
                  : tensor.kind == TensorKind::moment1 ? optimizer.moment1(i).as<float>() + (begin - span.begin)
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

std::vector<TensorKind> LocalTensors::kinds() const {
  if (!optimizer || weights_only) return {TensorKind::weight};
  return {std::begin(kTensorKinds), std::end(kTensorKinds)};
}

std::vector<LogicalTensor> tensors_of(const LocalTensors& tensors) {
  std::vector<LogicalTensor> all;
  for (const nn::Parameter& parameter : tensors.parameters.all())
    for (TensorKind kind : tensors.kinds()) all.push_back({&parameter, kind});
  return all;
}

std::vector<Run> runs_to_write(const LocalTensors& tensors, const LogicalTensor& tensor) {
  if (tensors.snapshot) return tensors.snapshot->runs(tensor);
  if (!tensor.parameter->first_replica() || tensors.data_replica) return {};
  return tensors.optimizer ? in_order(runs_in_spans(tensors, tensor)) : whole_shard(*tensor.parameter);
}

// Rows of a shard that is cut along its columns lie side by side here: they are copied as one.
void Snapshot::add(const float* from, int64_t to, int64_t count) {
  if (!pieces_.empty() && pieces_.back().count < kPieceElements && pieces_.back().from + pieces_.back().count == from) {
    const int64_t more = std::min(count, kPieceElements - pieces_.back().count);
    pieces_.back().count += more;
    from += more, to += more, count -= more;
  }
  for (; count > 0; from += kPieceElements, to += kPieceElements, count -= kPieceElements)
    pieces_.push_back({from, to, std::min(kPieceElements, count)});
}

void Snapshot::plan(const LocalTensors& tensors) {
  runs_.clear();
  pieces_.clear();
  tensors_.clear();  // until there is memory
  const std::vector<LogicalTensor> planned = tensors_of(tensors);
  int64_t elements = 0;
  for (const LogicalTensor& tensor : planned)
    for (const Run& run : runs_[tensor] = runs_to_write(tensors, tensor)) {
      add(run.data, elements, run.count);
      elements += run.count;
    }
  const int64_t bytes = elements * int64_t(sizeof(float));
  if (bytes > memory_.size_bytes()) {
    memory_ = {};
    memory_ = Buffer::pinned(bytes, tensors.parameters.device());
  }
  auto* next = reinterpret_cast<float*>(memory_.data());
  for (const LogicalTensor& tensor : planned)
    for (Run& run : runs_[tensor]) next = (run.data = next) + run.count;
  tensors_ = planned;
}

void Snapshot::take(const LocalTensors& tensors) {
  if (tensors_ != tensors_of(tensors)) plan(tensors);
  const Device device = tensors.parameters.device();
  const Stream stream(device);  // the step's own has come to its end
  const auto copy_piece = [&](const Piece& piece) {
    const Shape shape = {piece.count};
    copy_async(memory_.tensor(piece.to * int64_t(sizeof(float)), shape, DType::f32),
               ConstTensor(piece.from, shape, DType::f32, device), stream);
  };
  const auto count = int64_t(pieces_.size());
  const int threads = device.kind == DeviceKind::cpu ? ops::parts_of(count, 1) : 1;
  ops::for_parts(count, threads, [&](int, int64_t begin, int64_t end) {
    std::for_each(pieces_.begin() + begin, pieces_.begin() + end, copy_piece);
  });
  stream.synchronize();
}

const std::vector<Run>& Snapshot::runs(const LogicalTensor& tensor) const {
  const auto found = runs_.find(tensor);
  require(found != runs_.end(), "{} was not copied before it was to be written", tensor.path());
  return found->second;
}

std::vector<Run> runs_to_read(const LocalTensors& tensors, const LogicalTensor& tensor) {
  return tensor.kind == TensorKind::weight ? whole_shard(*tensor.parameter) : in_order(runs_in_spans(tensors, tensor));
}

}  // namespace keel::checkpoints
