// keel convert, both ways: what is imported and exported again is the same bits; what does not fit is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <regex>
#include <set>

#include "checkpoints/safetensors/model_files.h"
#include "checkpoints/safetensors/writer.h"
#include "framework/io/files.h"
#include "framework/tensor/dtype.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"

namespace keel::testing {
namespace {

namespace fs = std::filesystem;
using checkpoints::safetensors::ModelFiles;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFamilies = golden_file("families/");

struct Weight {
  std::vector<int64_t> shape;
  std::vector<float> values;
  bool operator==(const Weight&) const = default;
};
using Weights = std::map<std::string, Weight>;

class Convert : public ::testing::Test {
 protected:
  Ended keel(const std::string& arguments, int ranks = 0) {
    const std::string launcher =
        ranks > 0 ? fmt::format("{} --oversubscribe --bind-to none -n {} ", MPIRUN, ranks) : "";
    return run_command(fmt::format("env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {}{} {}", launcher,
                                   KEEL_PROGRAM, arguments));
  }
  void convert(const std::string& arguments, int ranks = 0) {
    const Ended ended = keel("convert " + arguments, ranks);
    ASSERT_EQ(ended.code, 0) << ended.output;
  }
  static Weights weights_of(const std::string& path) {
    const ModelFiles files(path);
    Weights weights;
    for (const std::string& name : files.names()) {
      Weight& weight = weights[name];
      weight.shape = files.find(name)->shape;
      weight.values.resize(size_t(files.find(name)->elements()));
      files.read(name, 0, weight.values);
    }
    return weights;
  }
  // A folder with qwen3's config and tokenizer and other weights.
  std::string model_with(const Weights& weights, const std::string& name,
                         const std::function<void(json&)>& change = {}) {
    const std::string target = folder / name;
    fs::create_directories(target);
    json config = json::parse(std::ifstream(kFamilies + "qwen3/config.json"));
    if (change) change(config);
    io::write_file(target + "/config.json", config.dump());
    std::vector<checkpoints::safetensors::NamedShape> shapes;
    std::vector<std::vector<float>> values;
    for (const auto& [key, weight] : weights) {
      shapes.push_back({key, weight.shape});
      values.push_back(weight.values);
    }
    checkpoints::safetensors::write_model(shapes, [&](size_t i) { return values[i]; }, {.folder = target});
    return target;
  }
  std::string refusal(const std::string& from) {
    const Ended ended = keel("convert " + from + " " + (folder / "refused.h5"));
    EXPECT_EQ(ended.code, 2) << ended.output;
    EXPECT_FALSE(fs::exists(folder / "refused.h5"));
    return ended.output;
  }

  TemporaryFolder folder;
};

TEST_F(Convert, ThereAndBackIsTheSameBits) {
  for (const char* family : {"llama3", "olmo2", "qwen3", "qwen3_yarn", "gemma3"}) {
    const std::string h5 = folder / (std::string(family) + ".h5"), back = folder / family;
    convert(kFamilies + family + " " + h5);
    convert(h5 + " " + back);
    EXPECT_TRUE(weights_of(kFamilies + family) == weights_of(back)) << family;
    // And again from there: the same model, config included.
    const std::string again = folder / (std::string(family) + "-again.h5");
    convert(back + " " + again);
    const auto model = [&](const std::string& path) {
      const std::string text = keel("inspect --config " + path).output;
      return text.substr(text.find("model:"), text.find("data:") - text.find("model:"));
    };
    EXPECT_EQ(model(h5), model(again)) << family;
    EXPECT_EQ(run_command("h5diff -q " + h5 + " " + again + " /parameters").code, 0) << family;
  }
}

TEST_F(Convert, OnSeveralRanksAndInSeveralFiles) {
  convert(kFamilies + "olmo2 " + (folder / "one.h5"));
  convert(kFamilies + "olmo2 " + (folder / "four.h5"), 4);
  EXPECT_EQ(run_command(fmt::format("h5diff -q {} {} /parameters", folder / "one.h5", folder / "four.h5")).code, 0);
  convert((folder / "four.h5") + " " + (folder / "files") + " --file-bytes 20000");
  EXPECT_TRUE(fs::exists(folder / "files/model.safetensors.index.json"));
  EXPECT_TRUE(weights_of(kFamilies + "olmo2") == weights_of(folder / "files"));
  EXPECT_THAT(keel("convert " + (folder / "one.h5") + " " + (folder / "files")).output, HasSubstr("holds a model"));
}

// Every tensor, in both directions: where it comes from, its type and shape, and where it goes.
TEST_F(Convert, TellsWhatWentWhere) {
  Weights weights = weights_of(kFamilies + "qwen3");
  const size_t tensors = weights.size();
  weights["model.layers.7.extra"] = {{1}, {0}};
  const std::string attention = "model.layers.0.self_attn.";
  Weight& joined = weights[attention + "qkv_proj.weight"];
  joined.shape = {0, 32};
  for (const char* part : {"q_proj.weight", "k_proj.weight", "v_proj.weight"}) {
    const Weight weight = weights.at(attention + part);
    weights.erase(attention + part);
    joined.shape[0] += weight.shape[0];
    joined.values.insert(joined.values.end(), weight.values.begin(), weight.values.end());
  }
  // The words of each line that tells of a tensor.
  const auto table = [](const Ended& ended) {
    std::multiset<std::string> rows;
    for (const std::string& line : ended.lines)
      if (line.starts_with("  ")) rows.insert(std::regex_replace(line.substr(2), std::regex(" +"), " "));
    return rows;
  };
  const Ended there =
      keel("convert " + model_with(weights, "joined") + " " + (folder / "model.h5") + " --allow-unexpected");
  ASSERT_EQ(there.code, 0) << there.output;
  const std::string of_joined = "model.layers.0.self_attn.qkv_proj.weight from row ";
  EXPECT_EQ(table(there).size(), tensors + 1) << there.output;
  EXPECT_THAT(table(there), ::testing::IsSupersetOf(
                                {std::string("model.embed_tokens.weight F32 [320, 32] -> embedding.weight [320, 32]"),
                                 of_joined + "0 F32 [96, 32] -> blocks.0.attention.q.weight [64, 32]",
                                 of_joined + "64 F32 [96, 32] -> blocks.0.attention.k.weight [16, 32]",
                                 of_joined + "80 F32 [96, 32] -> blocks.0.attention.v.weight [16, 32]",
                                 std::string("model.layers.1.self_attn.k_norm.weight F32 [16] -> "
                                             "blocks.1.attention.k_norm.weight [16]"),
                                 std::string("model.layers.7.extra left out")}));
  const Ended back = keel("convert " + (folder / "model.h5") + " " + (folder / "back") + " --type bf16");
  ASSERT_EQ(back.code, 0) << back.output;
  EXPECT_EQ(table(back).size(), tensors) << back.output;
  EXPECT_THAT(table(back),
              ::testing::IsSupersetOf({"embedding.weight [320, 32] -> model.embed_tokens.weight BF16 [320, 32]",
                                       "blocks.0.attention.k.weight [16, 32] -> model.layers.0.self_attn.k_proj.weight "
                                       "BF16 [16, 32]",
                                       "blocks.1.mlp.down.weight [32, 48] -> model.layers.1.mlp.down_proj.weight BF16 "
                                       "[32, 48]",
                                       "final_norm.weight [32] -> model.norm.weight BF16 [32]"}));
}

// Neighbouring pairs: rows of q and k and their gains move together, and come back (CASES R80).
TEST_F(Convert, InterleavedPairs) {
  const Weights original = weights_of(kFamilies + "qwen3");
  convert(kFamilies + "qwen3 " + (folder / "halves.h5"));
  convert((folder / "halves.h5") + " " + (folder / "pairs") + " --rotary interleaved");
  const Weights pairs = weights_of(folder / "pairs");
  for (const char* name : {"self_attn.q_proj.weight", "self_attn.k_norm.weight"}) {
    const std::string key = std::string("model.layers.0.") + name;
    const std::vector<float>&a = original.at(key).values, &b = pairs.at(key).values;
    const size_t row = original.at(key).shape.size() > 1 ? 32 : 1;
    for (size_t i = 0; i < row; ++i) {
      EXPECT_EQ(a[3 * row + i], b[6 * row + i]) << name;        // the first half's fourth feature
      EXPECT_EQ(a[(8 + 3) * row + i], b[7 * row + i]) << name;  // and the second half's, beside it
    }
  }
  EXPECT_EQ(pairs.at("model.layers.0.self_attn.v_proj.weight"), original.at("model.layers.0.self_attn.v_proj.weight"));
  convert((folder / "pairs") + " " + (folder / "back.h5"));  // the file says it
  EXPECT_EQ(run_command(fmt::format("h5diff -q {} {} /parameters", folder / "halves.h5", folder / "back.h5")).code, 0);
}

TEST_F(Convert, JoinedProjectionsAndOtherPrefixes) {
  Weights joined;
  for (const auto& [name, weight] : weights_of(kFamilies + "qwen3")) joined["language_model." + name] = weight;
  const auto join = [&](const std::string& whole, std::initializer_list<const char*> parts) {
    Weight& target = joined[whole];
    for (const char* part : parts) {
      const Weight weight = joined.at(part);
      joined.erase(part);
      target.shape = {(target.shape.empty() ? 0 : target.shape[0]) + weight.shape[0], weight.shape[1]};
      target.values.insert(target.values.end(), weight.values.begin(), weight.values.end());
    }
  };
  for (const std::string layer : {"language_model.model.layers.0.", "language_model.model.layers.1."}) {
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    join(attention + "qkv_proj.weight", {(attention + "q_proj.weight").c_str(), (attention + "k_proj.weight").c_str(),
                                         (attention + "v_proj.weight").c_str()});
    join(mlp + "gate_up_proj.weight", {(mlp + "gate_proj.weight").c_str(), (mlp + "up_proj.weight").c_str()});
  }
  convert(model_with(joined, "joined") + " " + (folder / "joined.h5"), 2);
  convert((folder / "joined.h5") + " " + (folder / "split"));
  EXPECT_TRUE(weights_of(folder / "split") == weights_of(kFamilies + "qwen3"));
}

// Gains around 0 mean that the file stores gain - 1; the norms of queries and keys may be the only ones that do.
TEST_F(Convert, TellsOfGainsThatSeemToBeStoredLessOne) {  // CASES R09
  const char* warning = "does this file store gain - 1?";
  auto output = [&](const std::string& name, const std::function<bool(const std::string&)>& zeroed) {
    Weights weights = weights_of(kFamilies + "qwen3");
    for (auto& [key, weight] : weights)
      if (zeroed(key)) std::fill(weight.values.begin(), weight.values.end(), 0.f);
    const Ended ended = keel("convert " + model_with(weights, name) + " " + (folder / name) + ".h5");
    EXPECT_EQ(ended.code, 0) << ended.output;
    return ended.output;
  };
  EXPECT_THAT(output("none", [](const std::string&) { return false; }), Not(HasSubstr(warning)));
  EXPECT_THAT(output("all", [](const std::string& key) { return key.ends_with("norm.weight"); }),
              AllOf(HasSubstr("queries' norms"), HasSubstr("the other norms"), HasSubstr(warning)));
  EXPECT_THAT(output("keys", [](const std::string& key) { return key.ends_with("k_norm.weight"); }),
              AllOf(HasSubstr("keys' norms"), HasSubstr(warning), Not(HasSubstr("the other norms"))));
}

TEST_F(Convert, NamesWhatDoesNotFit) {  // CASES R10, R78
  const Weights good = weights_of(kFamilies + "qwen3");
  Weights bad = good;
  bad.erase("model.layers.1.self_attn.k_norm.weight");
  bad["model.layers.7.extra"] = {{1}, {0}};
  bad["model.norm.weight"] = {{31}, std::vector<float>(31)};
  const std::string message = refusal(model_with(bad, "bad"));
  EXPECT_THAT(message, HasSubstr("model.layers.1.self_attn.k_norm.weight is missing"));
  EXPECT_THAT(message, HasSubstr("model.layers.7.extra is not expected"));
  EXPECT_THAT(message, HasSubstr("model.norm.weight is [31] there, and [32] is needed"));
  EXPECT_THAT(message, Not(HasSubstr("q_proj")));

  Weights extra = good;
  extra["model.layers.7.extra"] = {{1}, {0}};
  convert(model_with(extra, "extra") + " " + (folder / "extra.h5") + " --allow-unexpected");

  // Tied: a head that equals the embedding is no harm, another is; untied: it must be there.
  Weights tied = good;
  tied["lm_head.weight"] = good.at("model.embed_tokens.weight");
  convert(model_with(tied, "tied") + " " + (folder / "tied.h5"));
  tied["lm_head.weight"].values[77] += 1;
  EXPECT_THAT(refusal(model_with(tied, "differs")), HasSubstr("lm_head.weight differs from model.embed_tokens.weight"));
  EXPECT_THAT(refusal(model_with(good, "untied", [](json& c) { c["tie_word_embeddings"] = false; })),
              HasSubstr("lm_head.weight is missing"));
  convert(model_with(tied, "both", [](json& c) { c["tie_word_embeddings"] = false; }) + " " + (folder / "both.h5"));
}

TEST_F(Convert, RefusesConfigsThatItCannotDo) {
  const Weights good = weights_of(kFamilies + "qwen3");
  int number = 0;
  const auto with = [&](const std::function<void(json&)>& change) {
    return refusal(model_with(good, fmt::format("config{}", ++number), change));
  };
  EXPECT_THAT(with([](json& c) { c["model_type"] = "qwen9"; }), HasSubstr("did you mean qwen3"));
  EXPECT_THAT(with([](json& c) { c.erase("model_type"); }), HasSubstr("model_type: is missing"));
  EXPECT_THAT(with([](json& c) { c.erase("hidden_size"); }), HasSubstr("and [320, 4096] is needed"));
  EXPECT_THAT(with([](json& c) { c["num_hidden_layers"] = 0; }), HasSubstr("num_hidden_layers: must be from 1"));
  EXPECT_THAT(with([](json& c) { c["hidden_size"] = "32"; }), HasSubstr("hidden_size: must be a whole number"));
  EXPECT_THAT(with([](json& c) { c["hidden_act"] = "relu"; }), HasSubstr("'relu' is not known"));
  EXPECT_THAT(with([](json& c) { c["rope_parameters"]["rope_type"] = "longrope"; }), HasSubstr("'longrope'"));
  EXPECT_THAT(with([](json& c) { c["num_key_value_heads"] = 3; }), HasSubstr("3 KV heads do not divide 4 heads"));
}

// A tokenizer comes along, generation needs nothing else, and the greedy text is that of transformers.
TEST_F(Convert, GeneratesWithTheModelsTokenizer) {
  const json greedy = json::parse(std::ifstream(kFamilies + "qwen3/greedy.json"));
  const std::string prompt = greedy["prompt"];
  std::string expected = prompt;
  for (int byte : greedy["bytes"]) expected += char(byte);
  convert(kFamilies + "qwen3 " + (folder / "model.h5"));
  const std::string arguments =
      "generate " + (folder / "model.h5") + " --temperature 0 --tokens 24 --prompt '" + prompt + "'";
  EXPECT_EQ(keel(arguments).output, expected + "\n");
  fs::create_directory(folder / "elsewhere");
  for (const char* name : {"model.h5", "model-tokenizer"})
    fs::rename(folder / name, folder / (std::string("elsewhere/") + name));
  EXPECT_EQ(keel(arguments.substr(0, 9) + (folder / "elsewhere/model.h5") +
                 arguments.substr(9 + (folder / "model.h5").size()))
                .output,
            expected + "\n");
}

// bos, all of eos, and pad: there, back, and where generation ends.
TEST_F(Convert, KeepsSpecialIds) {
  std::vector<int> every(320);
  std::iota(every.begin(), every.end(), 0);
  const std::string model = model_with(weights_of(kFamilies + "qwen3"), "special", [&](json& c) {
    c["bos_token_id"] = 1;
    c["eos_token_id"] = {0, 106};
    c["pad_token_id"] = 7;
  });
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy(kFamilies + "qwen3/" + name, folder / "special");
  convert(model + " " + (folder / "special.h5"));
  convert((folder / "special.h5") + " " + (folder / "back"));
  const json back = json::parse(std::ifstream(folder / "back/config.json"));
  EXPECT_EQ(back["bos_token_id"], 1);
  EXPECT_EQ(back["eos_token_id"], (json{0, 106}));
  EXPECT_EQ(back["pad_token_id"], 7);
  const std::string generate = "generate " + (folder / "special.h5") + " --tokens 5 --prompt norm ";
  EXPECT_NE(keel(generate).output, "norm\n");
  EXPECT_EQ(keel(generate + fmt::format("'data.special_ids.eos=[{}]'", fmt::join(every, ","))).output, "norm\n");
  // Longer than the model sees: said, not only done.
  EXPECT_THAT(
      keel("generate " + (folder / "special.h5") + " --prompt 'the norm of a query' data.sequence_length=2").output,
      HasSubstr("tokens, and the model sees 2"));
}

TEST_F(Convert, GeneratesWithinTheModelsVocabulary) {
  convert(kFamilies + "qwen3 " + (folder / "model.h5"));
  const std::string generate = "generate " + (folder / "model.h5") + " --tokens 3 --prompt norm ";
  for (const char* value : {"nan", "-1"}) {
    const Ended ended = keel(generate + "--temperature " + value);
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.output, HasSubstr("--temperature"));
  }
  // Another tokenizer in its place, whose word for the prompt lies outside.
  const std::string tokenizer = folder / "model-tokenizer/tokenizer.json";
  json other = json::parse(std::ifstream(tokenizer));
  other["added_tokens"].push_back({{"id", 320}, {"content", "norm"}});
  io::write_file(tokenizer, other.dump());
  for (const auto& [also, message] : {std::pair("", "not the tokenizer that the model was trained with"),
                                      {"data.tokenizer_crc32c=null", "has id 320, and the model knows 320 ids"}}) {
    const Ended ended = keel(generate + also);
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.output, HasSubstr(message));
  }
}

// Wherever the model went, and whichever way it came to its tokenizer.
TEST_F(Convert, ExportsTheTokenizer) {
  fs::create_directory(folder / "elsewhere");
  convert(kFamilies + "qwen3 " + (folder / "model.h5"));
  for (const char* name : {"model.h5", "model-tokenizer"})
    fs::rename(folder / name, folder / (std::string("elsewhere/") + name));
  convert((folder / "elsewhere/model.h5") + " " + (folder / "moved"));
  const auto read = [](const std::string& path) { return io::read_file(path, 1 << 20); };
  EXPECT_EQ(read(folder / "moved/tokenizer.json"), read(kFamilies + "qwen3/tokenizer.json"));

  std::string text;
  for (int i = 0; i < 300; ++i) text += fmt::format("the norm of query {} and of its key\n", i * 7919 % 1000);
  io::write_file(folder / "text.txt", text);
  io::write_file(folder / "run.yaml", R"(
precision: fp32
model: {preset: baseline, hidden: 32, layers: 1, ffn: 64, attention: {heads: 2}}
data: {train: corpus, sequence_length: 16}
batch: {sequences: 2}
train: {steps: 1}
schedule: {warmup_steps: 0}
)");
  const auto exported = [&](const std::string& name, const std::string& tokenizer) {
    const std::string there = "cd " + folder.path() + " && " KEEL_PROGRAM " ";
    EXPECT_EQ(run_command(there + "tokenize text.txt --out corpus " + tokenizer).code, 0) << name;
    EXPECT_EQ(run_command(there + "train run.yaml name=" + name).code, 0) << name;
    const Ended ended = run_command(there + "convert runs/" + name + "/checkpoints/step-00000001.h5 " + name);
    EXPECT_EQ(ended.code, 0) << ended.output;
    return ended.output;
  };
  EXPECT_THAT(exported("bytes", ""), HasSubstr("no tokenizer goes along: its ids are bytes"));
  EXPECT_THAT(exported("pieces", "--sentencepiece 320"), HasSubstr("with its tokenizer"));
  EXPECT_EQ(read(folder / "pieces/tokenizer.model"), read(folder / "corpus.model"));
  const json pieces = json::parse(read(folder / "pieces/tokenizer_config.json"));
  EXPECT_EQ(pieces, json::parse(R"({"tokenizer_class": "LlamaTokenizer", "bos_token": null, "eos_token": "</s>",
                                    "unk_token": "<unk>", "add_bos_token": false, "add_eos_token": false,
                                    "add_prefix_space": false, "legacy": false})"));
  EXPECT_THAT(exported("given", "--model " + golden_file("tokenizers/llama3/tokenizer.json")),
              HasSubstr("with its tokenizer"));
  EXPECT_EQ(json::parse(read(folder / "given/tokenizer_config.json"))["eos_token"], "<|end|>");
  convert((folder / "given") + " " + (folder / "back.h5"));
  EXPECT_TRUE(fs::exists(folder / "back-tokenizer/tokenizer.json"));
}

// Types round once, to nearest even; a bf16 model is imported exactly.
TEST_F(Convert, ExportsHalfTypes) {
  convert(kFamilies + "llama3 " + (folder / "a.h5"));
  convert((folder / "a.h5") + " " + (folder / "bf16") + " --type bf16");
  convert((folder / "bf16") + " " + (folder / "b.h5"));
  convert((folder / "b.h5") + " " + (folder / "again") + " --type bf16");
  const Weights weights = weights_of(kFamilies + "llama3"), rounded = weights_of(folder / "bf16");
  for (const auto& [name, weight] : weights)
    for (size_t i = 0; i < weight.values.size(); ++i)
      ASSERT_EQ(rounded.at(name).values[i], float(bf16(weight.values[i]))) << name;
  EXPECT_TRUE(rounded == weights_of(folder / "again"));
  EXPECT_THAT(keel("inspect --config " + (folder / "b.h5")).output, HasSubstr("precision: bf16"));
  Weights large = weights_of(kFamilies + "qwen3");
  large.at("model.layers.1.mlp.up_proj.weight").values[5] = 1e5f;
  convert(model_with(large, "large") + " " + (folder / "large.h5"));
  const Ended ended = keel("convert " + (folder / "large.h5") + " " + (folder / "fp16") + " --type fp16");
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.output, HasSubstr("model.layers.1.mlp.up_proj.weight holds 100000, which F16 has no number for"));
  EXPECT_FALSE(fs::exists(folder / "fp16/model.safetensors"));
}

}  // namespace
}  // namespace keel::testing
