// The weights of a model in the safetensors format, as one set of tensors by name: `model.safetensors`, or several
// files and `model.safetensors.index.json`, which says where each tensor lies. Memory-mapped: nothing is read before it
// is asked for.
#pragma once

#include <memory>

#include "checkpoints/safetensors/header.h"
#include "framework/data/mapped_file.h"

namespace keel::checkpoints::safetensors {

// One file, its header checked.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  const Header& header() const { return header_; }
  const data::MappedFile& file() const { return file_; }

 private:
  data::MappedFile file_;
  Header header_;
};

class ModelFiles {
 public:
  // `path` is a folder, or one .safetensors file. Errors: files that are malformed or missing, a tensor that the index
  // has and no file (or the reverse), one that two files have.
  explicit ModelFiles(const std::string& path);

  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;
  const TensorEntry* find(const std::string& name) const;  // null where there is none
  // "" where there is no such note in any file.
  std::string metadata(const std::string& key) const;
  // Elements [first, first + values.size()) of a tensor, flattened; any type that holds weights.
  void read(const std::string& name, int64_t first, std::span<float> values) const;

 private:
  void open_index(const std::string& index);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> place_;
};

}  // namespace keel::checkpoints::safetensors
