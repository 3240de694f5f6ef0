// JSON from strangers: config.json, tokenizer.json, headers of safetensors files. One object, in which no key comes
// twice at any depth (readers disagree on which one would win) and which nests no deeper than anybody writes, so that
// copies and dumps of it, which recurse, find the stack that they need.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace keel::io {

using ForeignJson = nlohmann::json;  // keys in a tree: a million of them are found as fast as ten

inline constexpr int kDeepestJson = 64;

// Errors: an input error that begins with `what`.
ForeignJson parse_foreign_json(std::string_view text, const std::string& what);
// Errors: those of read_file, too.
ForeignJson read_foreign_json(const std::string& path, uint64_t largest_bytes);

// A value as messages show it: in ASCII, cut short where it is long.
std::string excerpt(const ForeignJson& value);

}  // namespace keel::io
