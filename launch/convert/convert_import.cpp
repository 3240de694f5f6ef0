// keel convert HF_DIR run.h5
#include <filesystem>

#include "checkpoints/writer.h"
#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/io/files.h"
#include "launch/common/environment.h"
#include "launch/common/loaded_model.h"
#include "launch/convert/convert.h"
#include "launch/convert/imported_weights.h"
#include "launch/convert/tokenizer_files.h"
#include "models/decoder/parallelize.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const std::string& from) {
  return fs::is_directory(from) ? fs::path(from) : fs::path(from).parent_path();
}

// A config that reads back: the model, and of a run only what must be there.
FullConfig run_config(const models::HuggingFaceConfig& model, const ConvertOptions& options,
                      const std::string& tokenizer) {
  using config::Node;
  const auto text = [](auto value) { return Node::make_text(fmt::format("{}", value)); };
  const int64_t length = std::min<int64_t>(model.decoder.positions.max_positions, 4096);
  std::vector<std::pair<std::string, Node>> data = {{"train", text("none")}, {"sequence_length", text(length)}};
  if (!tokenizer.empty()) data.emplace_back("tokenizer", text(tokenizer));
  data.emplace_back("special_ids", config::to_node(model.special_ids));
  const Node root = Node::make_map({{"name", text(fs::path(options.to).stem().string())},
                                    {"precision", text(model.element_type == "float32" ? "fp32" : "bf16")},
                                    {"model", config::to_node(model.decoder)},
                                    {"data", Node::make_map(data)},
                                    {"train", Node::make_map({{"steps", text(1)}})}});
  return parse_full_config(config::print(root), options.to, {});
}

// The folder of the tokenizer that came along; "" where none did.
std::string bring_tokenizer(const ConvertOptions& options) {
  const std::string folder = fs::path(options.to).parent_path().string(), own = tokenizer_folder(options.to);
  if (!folder.empty()) io::create_directories(folder);
  return copy_tokenizer(folder_of(options.from).string(), own) ? own : "";
}

}  // namespace

void import_model(const ConvertOptions& options, comm::World& world) {
  const std::string path = (folder_of(options.from) / "config.json").string();
  const std::string text = world.on_rank_0([&] { return io::read_file(path, uint64_t(1) << 24); });
  const models::HuggingFaceConfig model = models::read_hugging_face_config(text, path);
  if (!model.unread.empty()) log::info("{}: nothing here knows {}", path, fmt::join(model.unread, ", "));
  models::Decoder decoder(model.decoder);
  const ImportedWeights weights(decoder, options);
  const parallel::Mesh mesh(world.all(), world.size());
  models::parallelize(decoder, world.size());
  decoder.parameters().allocate({.tensor = mesh.tensor_position()});
  weights.fill();
  if (world.rank() == 0) weights.print_table();

  const std::string tokenizer = world.on_rank_0([&] { return bring_tokenizer(options); });
  const FullConfig config = run_config(model, options, tokenizer);
  const checkpoints::RunState state{.config = config.text(),
                                    .environment = environment_text(world, {}, {world.size(), 1, 1}),
                                    .data_fingerprint = "none",
                                    .qk_norm = models::qk_norm_text(config.model),
                                    .hooks = "{}",
                                    .weights_only = true};
  io::IoThread io;
  const int64_t bytes = checkpoints::write_checkpoint(world.all(), io, {decoder.parameters()}, state,
                                                      {.path = options.to, .io_comm = world.io_comm()});
  log::info("{}: {} parameters, {}{}", options.to, human_count(double(decoder.cost(1).parameters)),
            human_bytes(double(bytes)),
            tokenizer.empty() ? "; no tokenizer came with it" : ", tokenizer in " + tokenizer);
}

}  // namespace keel
