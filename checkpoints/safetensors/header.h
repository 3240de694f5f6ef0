// The header of a safetensors file, checked:
//
//   file     := header_bytes  header  data              header_bytes: uint64, little-endian
//   header   := {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//                "__metadata__": {"key": "text"}}       JSON; offsets count from the beginning of `data`
//
// The tensors cover `data` without gap or overlap. Anything else is refused: files come from strangers.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoints/safetensors/element.h"

namespace keel::checkpoints::safetensors {

struct TensorEntry {
  std::string type;  // as the file spells it
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes of the file

  int64_t elements() const;
  std::string shape_text() const;  // "[2, 3]"
};

struct Header {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// `file`: all of it, or at least what is there. Errors: an input error naming `path`, and the tensor where there is
// one.
Header read_header(std::string_view file, const std::string& path);
// What goes in front of the data; tensors lie in the order given.
std::string make_header(const std::vector<std::pair<std::string, TensorEntry>>& tensors,
                        const std::map<std::string, std::string>& metadata);

}  // namespace keel::checkpoints::safetensors
