// Small text helpers that several folders need.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keel {

// Without case (of ASCII), '-' and '_', which say nothing about what was meant.
std::string folded(std::string_view word);
// The candidate with the smallest edit distance, both folded, or "" where none is near (over a third of the longer name
// away).
std::string nearest(std::string_view word, std::span<const std::string> candidates);
// "did you mean X?" of the nearest, behind `before`; "" where there is none.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates, std::string_view before = "");

// 1536 -> "1.5 KiB"; for people.
std::string human_bytes(double bytes);
// 1234567 -> "1.23M"; for people.
std::string human_count(double count);
// 3725 -> "1h02m"; for people.
std::string human_seconds(double seconds);

// Strict numbers, independent of the locale: the whole text or false. Accepts 1e-4, 1.0e-4, .5; refuses nan and inf.
bool parse_real(std::string_view text, double& value);
// Decimal digits only, an optional sign; "1e3" and "010" are refused.
bool parse_integer(std::string_view text, int64_t& value);

}  // namespace keel
