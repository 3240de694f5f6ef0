#include "launch/convert/tokenizer_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "framework/data/tokenizer.h"
#include "framework/data/tokenizer_json.h"
#include "framework/io/files.h"

namespace keel {
namespace {

namespace fs = std::filesystem;

void copy(const std::string& from, const std::string& to) {
  constexpr uint64_t kLargest_bytes = uint64_t(1) << 30;
  io::create_directories(fs::path(to).parent_path().string());
  io::write_file(to, io::read_file(from, kLargest_bytes));
}

bool copy_folder(const std::string& from, const std::string& to) {
  if (!fs::exists(from + "/tokenizer.json") && !fs::exists(from + "/tokenizer.model")) return false;
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"})
    if (fs::exists(from + "/" + name)) copy(from + "/" + name, to + "/" + name);
  return true;
}

void write_tokenizer_config(const std::string& folder, int64_t end_of_text) {
  for (const data::AddedToken& token : data::read_tokenizer_json(folder + "/tokenizer.json").added)
    if (token.id == end_of_text)
      io::write_file(
          folder + "/tokenizer_config.json",
          nlohmann::ordered_json{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"eos_token", token.text}}.dump(2) +
              "\n");
}

// Of a model that Keel trained, whose pieces are exactly the text's: without this transformers puts a space in front,
// and an id that begins a sentence. Whatever class it loads for the model's type, these settings hold.
void write_sentencepiece_config(const std::string& folder) {
  const auto tokenizer = data::sentencepiece_tokenizer(folder + "/tokenizer.model");
  std::vector<int32_t> ids;
  std::string text;
  tokenizer->encode("a", ids);
  tokenizer->decode(ids, text);
  if (tokenizer->start_of_text() || text != "a") return;  // made elsewhere, with rules of its own
  const nlohmann::ordered_json json = {{"tokenizer_class", "LlamaTokenizer"},
                                       {"bos_token", nullptr},
                                       {"eos_token", "</s>"},
                                       {"unk_token", "<unk>"},
                                       {"add_bos_token", false},
                                       {"add_eos_token", false},
                                       {"add_prefix_space", false},
                                       {"legacy", false}};
  io::write_file(folder + "/tokenizer_config.json", json.dump(2) + "\n");
}

}  // namespace

bool copy_tokenizer(const std::string& from, const std::string& to, std::optional<int64_t> end_of_text) {
  const fs::path path(from);
  if (path.filename() == "tokenizer.json" || path.filename() == "tokenizer.model")
    return copy_folder(path.has_parent_path() ? path.parent_path().string() : ".", to);
  if (!fs::is_regular_file(path)) return copy_folder(from, to);
  const bool json = from.ends_with(".json");
  copy(from, to + (json ? "/tokenizer.json" : "/tokenizer.model"));
  if (json && end_of_text) write_tokenizer_config(to, *end_of_text);
  if (!json) write_sentencepiece_config(to);
  return true;
}

std::string tokenizer_folder(const std::string& checkpoint) {
  return fs::path(checkpoint).replace_extension("").string() + "-tokenizer";
}

}  // namespace keel
