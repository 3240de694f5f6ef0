// Do the ranks that must hold the same weights hold the same bits? A fault of memory or network, or one host with
// another library, lets replicas drift apart without any other sign (CASES R65).
#pragma once

#include "framework/parallel/mesh.h"

namespace keel::parallel {

// Compares hashes of what products read: of every parameter over the data ranks, of replicated ones and of shards that
// several ranks hold over the tensor ranks. Collective. Throws an internal error on all ranks that names a parameter,
// two ranks and the step.
void require_same_replicas(nn::ParameterSet& parameters, Mesh& mesh, int64_t step);

}  // namespace keel::parallel
