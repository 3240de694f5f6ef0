#include "framework/data/unicode_text.h"

#include <unicode/normalizer2.h>
#include <unicode/regex.h>
#include <unicode/utext.h>

#include "framework/base/error.h"
#include "framework/base/utf8.h"

namespace keel::data {
namespace {

void check(UErrorCode status, const char* action) {
  if (U_FAILURE(status)) throw Error(ErrorKind::internal, fmt::format("ICU: {}: {}", action, u_errorName(status)));
}

}  // namespace

std::string composed(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* form = icu::Normalizer2::getNFCInstance(status);
  check(status, "NFC");
  std::string out;
  while (!text.empty()) {
    const size_t valid = valid_prefix_bytes(text), odd = valid < text.size() ? 1 : 0;
    std::string part;
    icu::StringByteSink<std::string> sink(&part);
    form->normalizeUTF8(0, icu::StringPiece(text.data(), int32_t(valid)), sink, nullptr, status);
    check(status, "NFC");
    out.append(part).append(text.substr(valid, odd));
    text.remove_prefix(valid + odd);
  }
  return out;
}

struct UnicodePattern::Compiled {
  std::unique_ptr<icu::RegexPattern> pattern;
};

UnicodePattern::UnicodePattern(const std::string& pattern, const std::string& where)
    : compiled_(std::make_unique<Compiled>()) {
  UErrorCode status = U_ZERO_ERROR;
  UParseError place;
  compiled_->pattern.reset(icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(pattern), place, status));
  if (U_FAILURE(status))
    throw input_error("{}: the pattern '{}' is not understood at its character {}: {}", where, pattern, place.offset,
                      u_errorName(status));
}

UnicodePattern::~UnicodePattern() = default;
UnicodePattern::UnicodePattern(UnicodePattern&&) noexcept = default;

void UnicodePattern::split(std::string_view text, bool keeps_between,
                           const std::function<void(std::string_view)>& f) const {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<UText, decltype(&utext_close)> input(
      utext_openUTF8(nullptr, text.data(), int64_t(text.size()), &status), utext_close);
  check(status, "opening a text");
  const std::unique_ptr<icu::RegexMatcher> matcher(compiled_->pattern->matcher(status));
  check(status, "matching");
  matcher->reset(input.get());
  size_t done = 0;
  const auto give = [&](size_t begin, size_t end) {
    if (begin < end) f(text.substr(begin, end - begin));
  };
  while (matcher->find(status)) {
    const size_t begin = size_t(matcher->start64(status)), end = size_t(matcher->end64(status));
    if (keeps_between) give(done, begin);
    give(begin, end);
    done = end;
  }
  check(status, "matching");
  if (keeps_between) give(done, text.size());
}

}  // namespace keel::data
