#include "checkpoints/format.h"

#include "framework/base/text.h"

namespace keel::checkpoints {

const char* group_of(TensorKind kind) {
  constexpr const char* kGroups[] = {"parameters", "moment1", "moment2"};
  return kGroups[int(kind)];
}

std::string path_of(TensorKind kind, const std::string& parameter) {
  return fmt::format("{}/{}", group_of(kind), parameter);
}

std::string checksums_of(const std::string& path) {
  return "checksums/" + path;
}

Tiling::Tiling(const Shape& shape, int64_t tile_elements) : rows_(shape[0]) {
  require(shape.dims() > 0 && shape.elements() > 0 && tile_elements > 0, "no tiles of {} elements in a tensor {}",
          tile_elements, shape);
  row_elements_ = shape.elements() / rows_;
  rows_per_tile_ = std::max<int64_t>(1, tile_elements / row_elements_);
}

std::string file_name(int64_t step) {
  return fmt::format("step-{:08}.h5", step);
}

int64_t step_of(const std::string& name) {
  if (!name.starts_with("step-") || !name.ends_with(".h5") || name.size() < 16) return -1;
  std::string digits = name.substr(5, name.size() - 8);
  const size_t first = digits.find_first_not_of('0');
  digits = first == std::string::npos ? "0" : digits.substr(first);
  int64_t step = -1;
  return digits.find_first_not_of("0123456789") == std::string::npos && parse_integer(digits, step) ? step : -1;
}

}  // namespace keel::checkpoints
