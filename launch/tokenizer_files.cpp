#include "launch/tokenizer_files.h"

#include <filesystem>

#include "framework/base/error.h"
#include "framework/io/files.h"

namespace keel {

namespace fs = std::filesystem;

bool copy_tokenizer(const std::string& from, const std::string& to) {
  constexpr uint64_t kLargest_bytes = uint64_t(1) << 30;
  if (!fs::exists(from + "/tokenizer.json") && !fs::exists(from + "/tokenizer.model")) return false;
  io::create_directories(to);
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"})
    if (fs::exists(from + "/" + name))
      io::write_file(to + "/" + name, io::read_file(from + "/" + name, kLargest_bytes));
  return true;
}

std::string tokenizer_folder(const std::string& checkpoint) {
  return fs::path(checkpoint).replace_extension("").string() + "-tokenizer";
}

}  // namespace keel
