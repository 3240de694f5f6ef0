#include "launch/convert/imported_weights.h"

#include <algorithm>
#include <cmath>

#include "framework/base/log.h"

namespace keel {

using checkpoints::safetensors::TensorEntry;
using models::TensorMapping;

ImportedWeights::ImportedWeights(models::Decoder& decoder, const ConvertOptions& options)
    : decoder_(decoder), files_(options.from), rotary_(options.rotary), mappings_(models::tensor_mappings(decoder)) {
  if (files_.metadata("rotary") == "interleaved") rotary_ = RotaryPairs::interleaved;  // as keel convert notes it
  for (const TensorMapping& mapping : mappings_) locate(mapping);
  check_tied_head();
  check_unexpected(options.allow_unexpected);
  if (!wrong_.empty()) throw input_error("{} does not fit its config.json: {}", options.from, fmt::join(wrong_, "; "));
}

void ImportedWeights::fill() const {
  for (size_t i = 0; i < mappings_.size(); ++i) fill(mappings_[i], sources_[i]);
  check_gains();
}

// The file's name of a tensor: with or without the names of the models around it; "" where it has none.
std::string ImportedWeights::find(const std::string& theirs) const {
  const bool inside = theirs.starts_with("model.");
  const std::string bare = inside ? theirs.substr(6) : theirs;
  for (const std::string& name : {theirs, "language_model." + theirs, "model.language_model." + bare, bare})
    if (files_.find(name)) return name;
  return "";
}

void ImportedWeights::locate(const TensorMapping& mapping) {
  const std::string own = find(mapping.theirs), joined = mapping.fused.empty() ? "" : find(mapping.fused);
  sources_.push_back(own.empty() ? Source{joined, mapping.first_row} : Source{own, 0});
  used_.insert({own, joined});
  if (own.empty() && joined.empty()) {
    wrong_.push_back(mapping.theirs + " is missing");
    return;
  }
  if (!own.empty() && !joined.empty()) wrong_.push_back(fmt::format("{} and {} are both there", own, joined));
  std::vector<int64_t> wanted = mapping.shape;
  if (own.empty()) wanted[0] = mapping.fused_rows;
  const TensorEntry& entry = *files_.find(sources_.back().name);
  if (entry.shape != wanted)
    wrong_.push_back(fmt::format("{} is {} there, and {} is needed", sources_.back().name, entry.shape_text(),
                                 TensorEntry{.shape = wanted}.shape_text()));
}

// A tied model may carry its head all the same; then it must be the embedding.
void ImportedWeights::check_tied_head() {
  const std::string head = find("lm_head.weight"), table = find("model.embed_tokens.weight");
  if (!decoder_.config().tie_embeddings || head.empty() || table.empty()) return;
  used_.insert(head);
  const TensorEntry &a = *files_.find(head), &b = *files_.find(table);
  bool same = a.shape == b.shape && a.shape.size() == 2;
  std::vector<float> x(same ? size_t(a.shape.back()) : 0), y = x;
  for (int64_t row = 0; same && row < a.shape[0]; ++row) {
    files_.read(head, row * a.shape.back(), x);
    files_.read(table, row * a.shape.back(), y);
    same = x == y;
  }
  if (!same)
    wrong_.push_back(fmt::format("tie_word_embeddings is true, but {} differs from {}: set it to false", head, table));
}

void ImportedWeights::check_unexpected(bool allow) {
  const auto beside =
      [](const std::string& name) {  // an image tower and its projection; tables that a file need not hold
        return name.find("vision_tower.") != std::string::npos ||
               name.find("multi_modal_projector.") != std::string::npos || name.ends_with("rotary_emb.inv_freq");
      };
  for (const std::string& name : files_.names()) {
    if (used_.contains(name)) continue;
    if (beside(name) || allow)
      left_out_.push_back(name);
    else
      wrong_.push_back(name + " is not expected");
  }
}

// This rank's part. Rows of a padded vocabulary that the file does not have are 0.
void ImportedWeights::fill(const TensorMapping& mapping, const Source& source) const {
  const nn::Parameter& parameter = *mapping.parameter;
  const int64_t there = mapping.elements();
  const bool permuted = mapping.rotary && rotary_ == RotaryPairs::interleaved;
  const int64_t row = mapping.shape.size() > 1 ? mapping.shape.back() : 1;
  float* values = parameter.master.as<float>();
  nn::for_each_run(parameter, [&](int64_t logical, int64_t local, int64_t count) {
    const int64_t end = std::min(logical + count, there), step = permuted ? row : std::max<int64_t>(1, end - logical);
    for (int64_t at = logical; at < end; at += step) {
      const int64_t theirs = permuted ? models::interleaved_row(at / row, decoder_.config().head_dim(),
                                                                decoder_.config().rotated_features()) *
                                            row
                                      : at;
      files_.read(source.name, source.first_row * row + theirs,
                  std::span(values + local + (at - logical), size_t(std::min(step, end - at))));
    }
  });
}

// A stored gain means itself, or itself plus one: mixing the two up gives fluent nonsense, so it is told. The norms of
// queries and keys may keep to another convention than the rest.
void ImportedWeights::check_gains() const {
  const models::DecoderConfig& model = decoder_.config();
  auto check = [&](const char* what, bool zero_centered, const auto& belongs) {
    double sum = 0, count = 0;
    for (const TensorMapping& mapping : mappings_) {
      const std::string& name = mapping.parameter->spec.name;
      if (!name.ends_with("norm.weight") || !belongs(name)) continue;
      const Tensor& gains = mapping.parameter->master;
      for (int64_t i = 0; i < gains.elements(); ++i) sum += gains.as<float>()[i];
      count += double(gains.elements());
    }
    if (count > 0 && !zero_centered && std::abs(sum / count) < 0.1)
      log::warning("{}: the gains of {} are {:.3f} on average; does this file store gain - 1?", files_.path(), what,
                   sum / count);
  };
  auto ends = [](const char* suffix) { return [suffix](const std::string& name) { return name.ends_with(suffix); }; };
  const auto of_q = ends("q_norm.weight"), of_k = ends("k_norm.weight");
  check("queries' norms", model.attention.qk_norm.zero_centered, of_q);
  check("keys' norms", model.attention.qk_norm.zero_centered, of_k);
  check("the other norms", model.norm.zero_centered,
        [&](const std::string& name) { return !of_q(name) && !of_k(name); });
}

void ImportedWeights::print_table() const {
  for (size_t i = 0; i < mappings_.size(); ++i) {
    const TensorEntry& entry = *files_.find(sources_[i].name);
    const std::string rows =
        entry.shape == mappings_[i].shape ? "" : fmt::format(" from row {}", sources_[i].first_row);
    fmt::print("  {:<56} {:<5}{:<16} -> {:<40} {}\n", sources_[i].name + rows, entry.type, entry.shape_text(),
               mappings_[i].parameter->spec.name, mappings_[i].parameter->spec.shape);
  }
  for (const std::string& name : left_out_) fmt::print("  {:<78} left out\n", name);
}

}  // namespace keel
