// keel convert CKPT HF_DIR
#include <filesystem>

#include "checkpoints/reader.h"
#include "checkpoints/safetensors/writer.h"
#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/io/files.h"
#include "launch/common/loaded_model.h"
#include "launch/common/run_setup.h"
#include "launch/common/run_tokenizer.h"
#include "launch/convert/convert.h"
#include "launch/convert/tokenizer_files.h"
#include "models/decoder/hugging_face.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
namespace safetensors = checkpoints::safetensors;
using models::TensorMapping;

struct TypeNames {
  const char* here;
  safetensors::Element element;
  const char* theirs;  // in config.json
};
constexpr TypeNames kTypes[] = {{"fp32", safetensors::Element::f32, "float32"},
                                {"bf16", safetensors::Element::bf16, "bfloat16"},
                                {"fp16", safetensors::Element::f16, "float16"}};

const TypeNames& type_named(const std::string& name) {
  for (const TypeNames& type : kTypes)
    if (name == type.here) return type;
  throw input_error("--type {}: fp32, bf16 and fp16 are known", name);
}

// Rows in the order of the foreign file.
std::vector<float> with_interleaved_pairs(const std::vector<float>& values, const TensorMapping& mapping,
                                          const models::DecoderConfig& c) {
  const size_t row = mapping.shape.size() > 1 ? size_t(mapping.shape.back()) : 1;
  std::vector<float> out(values.size());
  for (size_t at = 0; at < values.size(); at += row) {
    const int64_t to = models::interleaved_row(int64_t(at / row), c.head_dim(), c.rotated_features());
    std::copy_n(values.begin() + ptrdiff_t(at), row, out.begin() + ptrdiff_t(to) * ptrdiff_t(row));
  }
  return out;
}

void print_table(const std::vector<TensorMapping>& mappings, const TypeNames& type) {
  for (const TensorMapping& mapping : mappings)
    fmt::print("  {:<40} {:<16} -> {:<56} {:<5}[{}]\n", mapping.parameter->spec.name,
               mapping.parameter->spec.shape.text(), mapping.theirs, safetensors::name_of(type.element),
               fmt::join(mapping.shape, ", "));
}

void check_target(const std::string& folder) {
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"})
    if (fs::exists(folder + "/" + name)) throw input_error("{} holds a model ({}): give an empty folder", folder, name);
}

// Copies the run's tokenizer along, and says what came of it.
std::string bring_tokenizer(const FullConfig& config, const ConvertOptions& options,
                            std::optional<int64_t> end_of_text) {
  try {
    const std::string path = find_tokenizer(config, options.from).path;
    if (path.empty()) return "; no tokenizer goes along: its ids are bytes";
    if (copy_tokenizer(path, options.to, end_of_text)) return ", with its tokenizer";
    return fmt::format("; no tokenizer goes along: there is none at {}", path);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) throw;
    return fmt::format("; no tokenizer goes along: {}", error.what());
  }
}

void run(const ConvertOptions& options) {
  const TypeNames& type = type_named(options.type);
  check_target(options.to);
  io::IoThread io;
  const FullConfig config = stored_config(io, options.from);
  models::Decoder decoder(config.model);
  const std::optional<int64_t> end_of_text = end_of_text_of_run(config, options.from);
  config::SpecialIds ids = config.run.data.special_ids;
  if (ids.eos.empty() && end_of_text) ids.eos = {*end_of_text};
  const std::string json = models::hugging_face_config(
      {.decoder = config.model, .element_type = type.theirs, .special_ids = ids}, config.run.data.sequence_length);
  const std::vector<TensorMapping> mappings = models::tensor_mappings(decoder);
  std::vector<safetensors::NamedShape> tensors;
  for (const TensorMapping& mapping : mappings) tensors.push_back({mapping.theirs, mapping.shape});
  const auto values_of = [&](size_t i) {
    const std::string& name = mappings[i].parameter->spec.name;
    std::vector<float> values = checkpoints::read_weights(io, options.from, {name}).at(name);
    values.resize(size_t(mappings[i].elements()));  // without vocabulary padding
    const bool permuted = mappings[i].rotary && options.rotary == RotaryPairs::interleaved;
    return permuted ? with_interleaved_pairs(values, mappings[i], config.model) : values;
  };
  io::create_directories(options.to);
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (options.rotary == RotaryPairs::interleaved) metadata["rotary"] = "interleaved";
  const int64_t bytes = safetensors::write_model(
      tensors, values_of,
      {.folder = options.to, .type = type.element, .file_bytes = options.file_bytes, .metadata = metadata});
  io::write_file(options.to + "/config.json", json);
  const std::string tokenizer = bring_tokenizer(config, options, end_of_text);
  print_table(mappings, type);
  log::info("{}: {} parameters, {}{}", options.to, human_count(double(decoder.cost(1).parameters)),
            human_bytes(double(bytes)), tokenizer);
}

}  // namespace

void export_model(const ConvertOptions& options, comm::World& world) {
  world.do_on_rank_0([&] { run(options); });
}

}  // namespace keel
