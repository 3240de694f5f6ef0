#include "framework/base/error.h"

namespace keel {

Error::Error(ErrorKind kind, std::string message, std::source_location where)
    : std::runtime_error(std::move(message)), kind_(kind), where_(where) {}

std::string Error::where() const {
  return fmt::format("{}:{}", where_.file_name(), where_.line());  // paths are relative: see -fmacro-prefix-map
}

Error in_mid_run(const Error& error) {
  return error.kind() == ErrorKind::input ? Error(ErrorKind::internal, error.what()) : error;
}

}  // namespace keel
