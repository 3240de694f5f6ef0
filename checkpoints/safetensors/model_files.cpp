#include "checkpoints/safetensors/model_files.h"

#include <filesystem>

#include "framework/base/error.h"
#include "framework/io/foreign_json.h"

namespace keel::checkpoints::safetensors {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLargestIndex_bytes = 100'000'000;

// File names of the index by tensor.
std::map<std::string, std::string> read_index(const std::string& path) {
  const io::ForeignJson json = io::read_foreign_json(path, kLargestIndex_bytes);
  const auto found = json.find("weight_map");
  if (found == json.end() || !found->is_object()) throw input_error("{}: has no object 'weight_map'", path);
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : found->items()) {
    const std::string value = file.is_string() ? file.get<std::string>() : "";
    if (value.empty() || value.find('/') != std::string::npos || value == "..")
      throw input_error("{}: the file of {} is {}, which is no name of a file beside it", path, name,
                        io::excerpt(file));
    files[name] = value;
  }
  return files;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), header_(read_header({file_.data(), size_t(file_.size_bytes())}, path)) {}

ModelFiles::ModelFiles(const std::string& path) : path_(path) {
  const std::string single = fs::is_directory(path) ? path + "/model.safetensors" : path;
  const std::string index = path + "/model.safetensors.index.json";
  if (!fs::exists(single) && fs::exists(index)) {
    open_index(index);
    return;
  }
  if (fs::is_directory(path) && !fs::exists(single))
    throw input_error("{}: holds neither model.safetensors nor model.safetensors.index.json", path);
  files_.push_back(std::make_unique<SafetensorsFile>(single));
  for (const auto& [name, entry] : files_.front()->header().tensors) place_[name] = files_.front().get();
}

void ModelFiles::open_index(const std::string& index) {
  const std::map<std::string, std::string> wanted = read_index(index);
  std::map<std::string, const SafetensorsFile*> open;
  for (const auto& [name, file] : wanted) {
    if (open.contains(file)) continue;
    files_.push_back(std::make_unique<SafetensorsFile>(path_ + "/" + file));
    open[file] = files_.back().get();
  }
  for (const auto& [file, tensors] : open)
    for (const auto& [name, entry] : tensors->header().tensors) {
      const auto found = wanted.find(name);
      if (found == wanted.end()) throw input_error("{}: does not list {}, which {} holds", index, name, file);
      if (found->second != file)
        throw input_error("{}: {} lies in {}, where the index says {}", index, name, file, found->second);
      place_[name] = tensors;
    }
  for (const auto& [name, file] : wanted)
    if (!place_.contains(name)) throw input_error("{}: {} is not in {}", index, name, file);
}

std::vector<std::string> ModelFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : place_) names.push_back(name);
  return names;
}

const TensorEntry* ModelFiles::find(const std::string& name) const {
  const auto found = place_.find(name);
  return found == place_.end() ? nullptr : &found->second->header().tensors.at(name);
}

std::string ModelFiles::metadata(const std::string& key) const {
  for (const auto& file : files_) {
    const auto found = file->header().metadata.find(key);
    if (found != file->header().metadata.end()) return found->second;
  }
  return "";
}

void ModelFiles::read(const std::string& name, int64_t first, std::span<float> values) const {
  const SafetensorsFile& file = *place_.at(name);
  const TensorEntry& entry = file.header().tensors.at(name);
  const auto type = element_named(entry.type);
  if (!type)
    throw input_error("{}: {} is {}; weights are read from F32, BF16 and F16", file.file().path(), name, entry.type);
  require(first >= 0 && first + int64_t(values.size()) <= entry.elements(), "{}: elements {} to {} of {}", name, first,
          first + int64_t(values.size()), entry.shape_text());
  to_float(values, file.file().data() + entry.begin + first * bytes_of(*type), *type);
}

}  // namespace keel::checkpoints::safetensors
