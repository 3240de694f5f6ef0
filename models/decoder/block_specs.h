// From the config to what the layers are told: one pure function per layer.
#pragma once

#include "framework/nn/embedding.h"
#include "framework/ops/qk_norm/rope_table.h"
#include "models/decoder/decoder_config.h"

namespace keel::models {

nn::EmbeddingSpec embedding_spec(const DecoderConfig& config);
nn::BlockSpec block_spec(const DecoderConfig& config, int64_t layer);
nn::NormSpec norm_spec(const DecoderConfig& config);
// Local layers are never scaled.
ops::RopeScaling rope_scaling(const DecoderConfig& config, LayerKind kind);
// m of that layer; 1 where nothing turns.
double rope_amplitude(const DecoderConfig& config, int64_t layer);
// Initial values of a matrix with that many inputs; `scale` multiplies the deviation.
nn::Init matrix_init(const DecoderConfig& config, int64_t inputs, double scale);

}  // namespace keel::models
