// How a decoder is split over the tensor axis: whole heads of q, k, v and their gains, features of the feed-forward
// layer, rows of the vocabulary; everything between is whole on every rank. QKNORM.md section 5 says who sums which
// gradient.
#pragma once

#include "models/decoder/decoder.h"

namespace keel::models {

// Sets every parameter's placement and each layer's share of heads for `tensor_size` ranks. Throws an input error with
// the numbers where something does not divide: heads, KV heads (one must divide the other), ffn, padded vocabulary.
void parallelize(Decoder& decoder, int tensor_size);

}  // namespace keel::models
