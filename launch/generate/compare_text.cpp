#include "launch/generate/compare_text.h"

#include <cctype>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace keel {
namespace {

constexpr size_t kSeed = 8;  // bytes of a match that is looked at closer

template <class F>
void for_each_word(std::string_view text, F&& f) {
  std::string word;
  for (char c : text) {
    if (std::isalpha(static_cast<unsigned char>(c))) {
      word += char(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty()) {
      f(word);
      word.clear();
    }
  }
  if (!word.empty()) f(word);
}

uint64_t seed_at(std::string_view text, size_t at) {
  uint64_t seed;
  std::memcpy(&seed, text.data() + at, kSeed);
  return seed;
}

std::string longest_copy(std::string_view generated, std::string_view trained) {
  std::unordered_map<uint64_t, std::vector<size_t>> places;
  for (size_t i = 0; i + kSeed <= generated.size(); ++i) places[seed_at(generated, i)].push_back(i);
  std::string_view longest;
  for (size_t at = 0; at + kSeed <= trained.size(); ++at) {
    const auto found = places.find(seed_at(trained, at));
    if (found == places.end()) continue;
    for (size_t begin : found->second) {
      size_t size = kSeed;
      while (begin + size < generated.size() && at + size < trained.size() &&
             generated[begin + size] == trained[at + size])
        ++size;
      if (size > longest.size()) longest = generated.substr(begin, size);
    }
  }
  return std::string(longest);
}

}  // namespace

TextComparison compare_text(std::string_view generated, std::string_view trained) {
  std::unordered_set<std::string> known;
  for_each_word(trained, [&](const std::string& word) { known.insert(word); });
  TextComparison comparison;
  for_each_word(generated, [&](const std::string& word) {
    ++comparison.words;
    comparison.known_words += known.contains(word);
  });
  comparison.longest_copy = longest_copy(generated, trained);
  return comparison;
}

}  // namespace keel
