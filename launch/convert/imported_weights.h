// The weights of a foreign checkpoint in a decoder's parameters: which tensor goes where, whether they fit, and the
// values themselves.
#pragma once

#include <set>

#include "checkpoints/safetensors/model_files.h"
#include "launch/convert/convert.h"
#include "models/decoder/hugging_face.h"

namespace keel {

class ImportedWeights {
 public:
  // Throws where tensors are missing, unexpected, there twice or of another shape, naming each. The decoder outlives
  // this.
  ImportedWeights(models::Decoder& decoder, const ConvertOptions& options);

  // This rank's shards of the parameters, which are allocated.
  void fill() const;
  // A line per tensor: what went where, and what was left out.
  void print_table() const;

 private:
  // Where a parameter's values lie: rows from first_row on of a tensor.
  struct Source {
    std::string name;
    int64_t first_row = 0;
  };

  std::string find(const std::string& theirs) const;
  void locate(const models::TensorMapping& mapping);
  void check_tied_head();
  void check_unexpected(bool allow);
  void fill(const models::TensorMapping& mapping, const Source& source) const;
  void check_gains() const;

  models::Decoder& decoder_;
  checkpoints::safetensors::ModelFiles files_;
  RotaryPairs rotary_;
  std::vector<models::TensorMapping> mappings_;
  std::vector<Source> sources_;  // of each mapping
  std::set<std::string> used_;
  std::vector<std::string> left_out_, wrong_;
};

}  // namespace keel
