// Gradients over the data axis, bucket by bucket while backward still runs, then over the tensor axis for what ranks of
// it share (QKNORM.md section 5); the gradient norm; and the update, sharded (ZeRO-1, Rajbhandari et al. 2020) or not.
//
// Every bucket of every arena is cut into one piece per data rank. Sums are reduce-scattered to the pieces either way
// and the norm is taken over the pieces either way, so that sharded and unsharded runs are the same bits; unsharded,
// the summed pieces are then gathered and every rank updates everything.
#pragma once

#include "framework/parallel/mesh.h"
#include "framework/parallel/pieces.h"

namespace keel::parallel {

class DataParallel {
 public:
  // `parameters` are allocated, for this mesh. zero: moments and the update of master weights only for the own pieces;
  // master weights of other pieces are then stale on this rank wherever they have a compute copy.
  DataParallel(nn::ParameterSet& parameters, Mesh& mesh, bool zero);

  // In the last micro-step's backward: gradients of parameters from this index on are complete.
  void gradients_complete(size_t first_parameter);
  // Waits for what was started and sums over the tensor axis. Afterwards the own pieces hold the sums over all ranks.
  void finish_gradients();
  // squares [1] fp64, zero before, = the sum of squares of the summed gradients, each logical element counted once; the
  // same bits on all ranks. NaN or Inf where one is.
  void gradient_squares(Tensor squares);
  // The name of the first parameter whose summed gradient has a value that is not finite, over all ranks; "" where
  // none has. Collective.
  std::string first_gradient_not_finite();

  // What the optimizer of this rank updates: own pieces, or everything.
  std::vector<nn::ArenaRange> update_spans() const;
  // Brings every rank's compute copies up to date after the update. `round`: master weights changed after the optimizer
  // wrote the copies.
  void publish_weights(bool round);

  bool zero() const { return zero_; }

 private:
  struct Bucket {
    nn::ArenaRange whole, piece;
    size_t first_parameter = 0;  // complete when gradients from this index on are
  };
  // Parts of own pieces whose gradient `group` still has to sum.
  struct SharedParts {
    comm::Communicator* group = nullptr;
    std::vector<Tensor> parts;
    OwnedTensor packed;
  };

  void make_buckets();
  comm::Communicator* sharing_group(const nn::Parameter& parameter);
  void collect_shared_parts();
  void collect_counted();
  void sum_shared(SharedParts& shared);
  void append_by_sum(std::vector<nn::ArenaRange>& spans, nn::ArenaRange rest, bool by_layer) const;
  void gather(Tensor arena, const Bucket& bucket);
  Tensor gradient(const nn::ArenaRange& span) const;

  nn::ParameterSet& parameters_;
  Mesh& mesh_;
  bool zero_;
  const std::vector<nn::ArenaRange> pieces_;  // of this rank
  std::vector<Bucket> buckets_;               // in the order in which backward completes them
  std::vector<SharedParts> shared_;
  std::vector<Tensor> counted_;  // parts of own pieces that this rank counts in the norm
  size_t started_ = 0;
  std::vector<comm::Request> requests_;
};

}  // namespace keel::parallel
