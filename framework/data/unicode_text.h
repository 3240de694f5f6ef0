// What tokenizers of Unicode text need and the standard library lacks: composed characters, and regular expressions
// with \p{L}. Through ICU, which no other header includes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace keel::data {

// Normalisation form C. Bytes that are no UTF-8 stay as they are.
std::string composed(std::string_view text);

class UnicodePattern {
 public:
  // Errors: a pattern that ICU does not understand; `where` names its file.
  UnicodePattern(const std::string& pattern, const std::string& where);
  ~UnicodePattern();
  UnicodePattern(UnicodePattern&&) noexcept;

  // Calls f with every match and, unless those go, every stretch between matches, in order. May be called by several
  // threads at once.
  void split(std::string_view text, bool keeps_between, const std::function<void(std::string_view)>& f) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace keel::data
