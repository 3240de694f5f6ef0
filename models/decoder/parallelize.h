// How a decoder is split over the tensor axis: whole heads of q, k, v and their gains, features of the feed-forward
// layer, rows of the vocabulary; everything between is whole on every rank. QKNORM.md section 5 says who sums which
// gradient.
#pragma once

#include "models/decoder/decoder.h"

namespace keel::models {

// Throws where the ranks of a tensor group do not divide heads, ffn or the padded vocabulary, or KV heads and ranks not
// one another. `place`: what chose the ranks, for the error.
void check_tensor_ranks(const DecoderConfig& config, int64_t ranks, const config::Node& place);

// Sets every parameter's placement and each layer's share of heads for `tensor_size` ranks, checked.
void parallelize(Decoder& decoder, int tensor_size);

}  // namespace keel::models
