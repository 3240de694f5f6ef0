#include "checkpoints/safetensors/writer.h"

#include <nlohmann/json.hpp>

#include "framework/io/files.h"

namespace keel::checkpoints::safetensors {
namespace {

using ValuesOf = std::function<std::vector<float>(size_t tensor)>;

// Tensors [begin, end) of one file.
struct Shard {
  size_t begin = 0, end = 0;
  int64_t bytes = 0;
};

std::vector<Shard> shards_of(const std::vector<TensorEntry>& entries, int64_t file_bytes) {
  std::vector<Shard> shards = {{}};
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t bytes = entries[i].elements() * bytes_of_any(entries[i].type);
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > file_bytes) shards.push_back({i, i});
    shards.back().end = i + 1;
    shards.back().bytes += bytes;
  }
  return shards;
}

void write_shard(const std::string& path, const Shard& shard, const std::vector<NamedShape>& tensors,
                 const ValuesOf& values_of, const WriteOptions& options) {
  std::vector<std::pair<std::string, TensorEntry>> entries;
  for (size_t i = shard.begin; i < shard.end; ++i)
    entries.push_back({tensors[i].name, {.type = std::string(name_of(options.type)), .shape = tensors[i].shape}});
  io::AtomicFile file(path);
  file.write(make_header(entries, options.metadata));
  for (size_t i = shard.begin; i < shard.end; ++i) {
    const std::vector<float> values = values_of(i);
    require(int64_t(values.size()) == entries[i - shard.begin].second.elements(), "{}: {} values for {}",
            tensors[i].name, values.size(), entries[i - shard.begin].second.shape_text());
    if (const auto value = first_too_large(values, options.type))
      throw input_error("{} holds {}, which {} has no number for: export as bf16 or fp32", tensors[i].name, *value,
                        name_of(options.type));
    std::string bytes;
    append_bytes(bytes, values, options.type);
    file.write(bytes);
  }
  file.commit();
}

}  // namespace

int64_t write_model(const std::vector<NamedShape>& tensors, const ValuesOf& values_of, const WriteOptions& options) {
  std::vector<TensorEntry> entries;
  for (const NamedShape& tensor : tensors)
    entries.push_back({.type = std::string(name_of(options.type)), .shape = tensor.shape});
  const std::vector<Shard> shards = shards_of(entries, options.file_bytes);
  nlohmann::ordered_json map;
  int64_t bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_shard(options.folder + "/" + name, shards[i], tensors, values_of, options);
    for (size_t tensor = shards[i].begin; tensor < shards[i].end; ++tensor) map[tensors[tensor].name] = name;
    bytes += shards[i].bytes;
  }
  if (shards.size() == 1) return bytes;
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
  io::write_file(options.folder + "/model.safetensors.index.json", index.dump(2) + "\n");
  return bytes;
}

}  // namespace keel::checkpoints::safetensors
