#include "framework/parallel/data_parallel.h"

#include <algorithm>
#include <cmath>

#include "framework/ops/elementwise.h"
#include "framework/tensor/copy.h"

namespace keel::parallel {

DataParallel::DataParallel(nn::ParameterSet& parameters, Mesh& mesh, bool zero)
    : parameters_(parameters), mesh_(mesh), zero_(zero), pieces_(pieces_of(parameters, mesh.data_position())) {
  make_buckets();
  collect_shared_parts();
  collect_counted();
}

void DataParallel::make_buckets() {
  for (size_t a = 0; a < parameters_.arenas().size(); ++a) {
    int64_t begin = 0;
    for (int64_t end : parameters_.arenas()[a].bucket_ends) {
      Bucket bucket{{int(a), begin, end}, pieces_[buckets_.size()]};
      size_t index = 0;
      for (const nn::Parameter& parameter : parameters_.all()) {
        if (parameter.arena == int(a) && parameter.offset_elements + parameter.local.elements() > begin) break;
        ++index;
      }
      bucket.first_parameter = index;
      buckets_.push_back(bucket);
      begin = end;
    }
  }
  std::stable_sort(buckets_.begin(), buckets_.end(),
                   [](const Bucket& a, const Bucket& b) { return a.first_parameter > b.first_parameter; });
}

// The ranks that sum this parameter's gradient, besides the data axis; null where it is whole already.
comm::Communicator* DataParallel::sharing_group(const nn::Parameter& parameter) {
  const nn::Placement& placement = parameter.placement;
  if (placement.kind == nn::Placement::Kind::shard && placement.replicas > 1)
    return &mesh_.replica_group(placement.replicas);
  if (placement.kind == nn::Placement::Kind::replicated_partial && mesh_.tensor().size() > 1) return &mesh_.tensor();
  return nullptr;
}

void DataParallel::collect_shared_parts() {
  for (nn::Parameter& parameter : parameters_.all()) {
    comm::Communicator* group = sharing_group(parameter);
    if (!group) continue;
    for_each_part(pieces_, parameter, [&](int64_t begin, int64_t end) {
      // Groups in the order of their first parameter, which is the same on all ranks.
      auto shared =
          std::find_if(shared_.begin(), shared_.end(), [&](const SharedParts& s) { return s.group == group; });
      if (shared == shared_.end()) shared = shared_.insert(shared_.end(), SharedParts{group, {}, {}});
      shared->parts.push_back(part_of(parameter.gradient, begin, end));
    });
  }
  for (SharedParts& shared : shared_) {
    int64_t elements = 0;
    for (const Tensor& part : shared.parts) elements += part.elements();
    shared.packed = OwnedTensor({elements}, DType::f32, shared.parts[0].device());
  }
}

// Across parameters and buckets, padding included, which is 0: a GPU adds few long ranges faster than many short ones.
void DataParallel::collect_counted() {
  std::vector<nn::ArenaRange> joined, spans;
  for (const nn::ArenaRange& piece : pieces_) {
    const bool continues = !joined.empty() && joined.back().arena == piece.arena && joined.back().end == piece.begin;
    continues ? void(joined.back().end = piece.end) : joined.push_back(piece);
  }
  for (const nn::ArenaRange& piece : joined) append_by_sum(spans, piece, false);
  for (const nn::ArenaRange& span : spans)
    if (span.counted) counted_.push_back(gradient(span));
}

Tensor DataParallel::gradient(const nn::ArenaRange& span) const {
  return parameters_.arenas()[span.arena].gradient.slice(0, span.begin, span.end);
}

void DataParallel::gradients_complete(size_t first_parameter) {
  for (; started_ < buckets_.size() && buckets_[started_].first_parameter >= first_parameter; ++started_)
    requests_.push_back(
        mesh_.data().start_reduce_scatter(gradient(buckets_[started_].piece), gradient(buckets_[started_].whole)));
  mesh_.data().poll();
}

void DataParallel::finish_gradients() {
  gradients_complete(0);
  for (comm::Request& request : requests_) request.wait();
  requests_.clear();
  started_ = 0;
  for (SharedParts& shared : shared_) sum_shared(shared);
  if (zero_) return;
  for (const Bucket& bucket : buckets_) gather(parameters_.arenas()[bucket.whole.arena].gradient, bucket);
}

void DataParallel::sum_shared(SharedParts& shared) {
  int64_t at = 0;
  auto each = [&](auto&& copy) {
    at = 0;
    for (const Tensor& part : shared.parts) {
      copy(part, shared.packed.tensor.slice(0, at, at + part.elements()));
      at += part.elements();
    }
  };
  each([](Tensor part, Tensor packed) { ops::convert(packed, part); });
  shared.group->all_reduce(shared.packed.tensor);
  each([](Tensor part, Tensor packed) { ops::convert(part, packed); });
}

void DataParallel::gradient_squares(Tensor squares) {
  for (const Tensor& part : counted_) ops::add_sum_of_squares(squares, part);
  mesh_.world().all_reduce(squares);  // one sum: two groups after one another need not give all ranks the same bits
}

std::string DataParallel::first_gradient_not_finite() {
  const std::deque<nn::Parameter>& all = parameters_.all();
  const OwnedTensor squares({int64_t(all.size())}, DType::f64, parameters_.device());
  for (int64_t i = 0; i < int64_t(all.size()); ++i)
    for_each_part(pieces_, all[size_t(i)], [&](int64_t begin, int64_t end) {
      ops::add_sum_of_squares(squares.tensor.slice(0, i, i + 1), part_of(all[size_t(i)].gradient, begin, end));
    });
  const HostTensor host(squares);
  const double* of = host.tensor().as<double>();
  int64_t index = std::find_if_not(of, of + all.size(), [](double x) { return std::isfinite(x); }) - of;
  index = -comm::all_reduce_value(mesh_.world(), -index, comm::Reduction::max);
  return index < int64_t(all.size()) ? all[size_t(index)].spec.name : std::string();
}

std::vector<nn::ArenaRange> DataParallel::update_spans() const {
  std::vector<nn::ArenaRange> spans;
  if (zero_) {
    for (const nn::ArenaRange& piece : pieces_) append_by_sum(spans, piece, true);
  } else {
    for (size_t a = 0; a < parameters_.arenas().size(); ++a)
      append_by_sum(spans, {int(a), 0, parameters_.arenas()[a].elements}, true);
  }
  return spans;
}

// Cuts a span where it passes from weights that this rank counts to weights that it does not and, `by_layer`, to
// another layer.
void DataParallel::append_by_sum(std::vector<nn::ArenaRange>& spans, nn::ArenaRange rest, bool by_layer) const {
  for (const nn::Parameter* parameter : parameters_.arenas()[rest.arena].parameters) {
    const int64_t begin = parameter->offset_elements;
    if (begin + parameter->local.elements() <= rest.begin) continue;
    if (begin >= rest.end) break;
    const bool same = parameter->first_replica() == rest.counted && (!by_layer || parameter->spec.layer == rest.layer);
    if (begin > rest.begin && !same) {
      spans.push_back({rest.arena, rest.begin, begin, rest.counted, rest.layer});
      rest.begin = begin;
    }
    rest.counted = parameter->first_replica();
    rest.layer = parameter->spec.layer;
  }
  spans.push_back(rest);
}

void DataParallel::gather(Tensor arena, const Bucket& bucket) {
  mesh_.data().all_gather(arena.slice(0, bucket.whole.begin, bucket.whole.end),
                          arena.slice(0, bucket.piece.begin, bucket.piece.end));
}

void DataParallel::publish_weights(bool round) {
  if (round) parameters_.round_to_compute();
  if (!zero_) return;
  for (const Bucket& bucket : buckets_) gather(parameters_.arenas()[bucket.whole.arena].compute, bucket);
}

}  // namespace keel::parallel
