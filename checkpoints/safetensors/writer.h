// Writes a model's weights in the safetensors format: one file where it fits, else numbered ones and their index, which
// comes last.
#pragma once

#include <functional>

#include "checkpoints/safetensors/header.h"

namespace keel::checkpoints::safetensors {

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};

struct WriteOptions {
  std::string folder;
  Element type = Element::f32;
  int64_t file_bytes = int64_t(5) << 30;  // of one file; a larger tensor has one to itself
  std::map<std::string, std::string> metadata;
};

// `values_of` gives all elements of the tensor with that number; one tensor is in memory at a time. Each file is
// complete under its name or not there. Returns the bytes written.
int64_t write_model(const std::vector<NamedShape>& tensors,
                    const std::function<std::vector<float>(size_t tensor)>& values_of, const WriteOptions& options);

}  // namespace keel::checkpoints::safetensors
