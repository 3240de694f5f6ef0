// configs/families: every file reads, and has as many parameters as the published model.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "framework/io/files.h"
#include "launch/common/run_setup.h"
#include "models/decoder/essence.h"
#include "models/decoder/hugging_face.h"

namespace keel {
namespace {

const std::string kFolder = KEEL_SOURCE_DIR "/configs/families/";

// As transformers counts a model of that config.json, a tied head once.
const std::map<std::string, int64_t> kParameters = {
    {"llama3-8b", 8'030'261'248},   {"llama3-70b", 70'553'706'496}, {"olmo2-1b", 1'484'916'736},
    {"olmo2-7b", 7'298'617'344},    {"olmo2-13b", 13'716'198'400},  {"olmo2-32b", 32'234'279'936},
    {"qwen3-0.6b", 596'049'920},    {"qwen3-1.7b", 1'720'574'976},  {"qwen3-8b", 8'190'735'360},
    {"qwen3-32b", 32'762'123'264},  {"gemma3-1b", 999'885'952},     {"gemma3-4b", 3'880'263'168},
    {"gemma3-12b", 11'766'034'176}, {"gemma3-27b", 27'009'346'304}};

TEST(FamilyConfigs, AllReadAndCount) {
  size_t counted = 0, tiny = 0;
  const std::vector<std::string> presets = models::enum_names(models::Preset());
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string name = entry.path().stem();
    const FullConfig config = read_full_config(entry.path(), {});
    const int64_t parameters = models::Decoder(config.model).cost(1).parameters;
    if (const auto published = kParameters.find(name); published != kParameters.end()) {
      EXPECT_EQ(parameters, published->second) << name;
      ++counted;
    } else {
      EXPECT_EQ(name, presets.at(size_t(config.model.preset)) + "-tiny");
      EXPECT_LT(parameters, 1'000'000) << name;
      ++tiny;
    }
  }
  EXPECT_EQ(counted, kParameters.size());
  EXPECT_EQ(tiny, presets.size() - 1) << "a tiny model of every preset but `none`";
}

// What a run prints of its config says all of it.
TEST(FamilyConfigs, ChosenKeysAreTheConfig) {
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const FullConfig config = read_full_config(entry.path(), {});
    std::vector<std::string> chosen = chosen_keys(config);
    EXPECT_LT(chosen.size(), 40u) << entry.path();
    chosen.push_back("name=" + config.run.name);
    EXPECT_EQ(parse_full_config("train: {}", "nothing", chosen).text(), config.text()) << entry.path();
  }
}

// What a block is, key by key. Left out is what config.json does not say: how weights begin and are trained.
void expect_same(const config::Node& ours, const config::Node& theirs, const std::string& name) {
  for (const std::string& key : ours.keys()) {
    const std::string path = ours[key].path();
    if (path == "init" || path == "recompute" || path == "residual" || path == "positions.max_positions") continue;
    if (ours[key].kind() == config::Node::Kind::map && ours[key].size() > 0)
      expect_same(ours[key], theirs[key], name);
    else
      EXPECT_EQ(config::print_line(ours[key]), config::print_line(theirs[key])) << name << ": " << path;
  }
}

// The same in one form: numbers where a default is meant.
models::DecoderConfig in_numbers(models::DecoderConfig c) {
  c.attention.kv_heads = c.kv_heads();
  c.attention.head_dim = c.head_dim();
  c.attention.logit_scale.init = double(float(c.initial_scale(0)));
  if (c.attention.qk_norm.kind == ops::QkNormKind::none) c.attention.qk_norm = {.kind = ops::QkNormKind::none};
  return c;
}

// tests/golden/families/configs: config.json as the models were published with them.
TEST(FamilyConfigs, AreThePublishedBlocks) {
  for (const auto& [name, count] : kParameters) {
    const std::string path = fmt::format(KEEL_SOURCE_DIR "/tests/golden/families/configs/{}.json", name);
    const auto tree = [](const models::DecoderConfig& c) {
      return config::parse(config::print(config::to_node(in_numbers(c))), "model");
    };
    const models::HuggingFaceConfig published = models::read_hugging_face_config(io::read_file(path, 1 << 20), name);
    expect_same(tree(read_full_config(kFolder + name + ".yaml", {}).model), tree(published.decoder), name);
    EXPECT_TRUE(published.unread.empty()) << name << ": " << published.unread.front();
    EXPECT_EQ(models::Decoder(published.decoder).cost(1).parameters, count) << name;
    // What checkpoint.weights_from compares: these configs train on from the imported models.
    const FullConfig ours = read_full_config(kFolder + name + ".yaml", {});
    EXPECT_TRUE(models::differences_of_functions(published.decoder, ours.model).empty()) << name;
  }
}

TEST(FamilyConfigs, WeightsInQkNorm) {  // QKNORM.md section 4
  const auto count = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"model.attention.qk_norm.kind=rms", "model.attention.qk_norm.weight=per_head",
                                       "model.attention.logit_scale.kind=fixed"});
    return models::Decoder(read_full_config(kFolder + "llama3-70b.yaml", overrides).model).cost(1).qk_norm_parameters;
  };
  EXPECT_EQ(count({}), 737'280);
  EXPECT_EQ(count({"model.attention.kv_heads=64"}), 1'310'720);
}

}  // namespace
}  // namespace keel
