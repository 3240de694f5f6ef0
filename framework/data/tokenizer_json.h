// tokenizer.json of Hugging Face tokenizers, as far as it describes a byte-level BPE: every byte is a symbol, written
// as a printable character ("Ġ" is a space), and pairs of symbols merge in the order of a list (Sennrich et al. 2016;
// Radford et al. 2019). GPT-2, Llama 3, Qwen and OLMo 2 ship this kind. What Keel does not know is refused, never left
// out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace keel::data {

struct AddedToken {
  std::string text;
  int32_t id = 0;
  bool special = false;
};

struct CutPattern {
  std::string expression;
  bool keeps_between = true;  // false: what no match covers is dropped (OLMo 2)
};

struct ByteLevelModel {
  std::unordered_map<std::string, int32_t> ids;     // by the bytes of each symbol
  std::vector<std::pair<int32_t, int32_t>> merges;  // first merge first; ids of both sides
  std::vector<AddedToken> added;                    // found in a text before anything else
  std::vector<CutPattern> patterns;                 // the text is cut by each in turn
  bool compose = false;                             // normalisation form C comes first
  bool space_in_front = false;                      // of a text that begins with none
  bool whole_words = false;                         // a word that is a symbol needs no merges
  std::optional<int32_t> start_of_text;             // put in front of every text
};

// Errors: an input error that names `path` and the key.
ByteLevelModel read_tokenizer_json(const std::string& path);
// Whether it is of this kind, for a choice between several files.
bool is_byte_level(const std::string& path);
// The id that ends a text: "eos_token" of tokenizer_config.json beside `path`.
int32_t read_end_of_text(const std::string& path, const ByteLevelModel& model);

}  // namespace keel::data
