#include "framework/io/telemetry.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>

#include "framework/base/log.h"
#include "framework/base/text.h"
#include "framework/io/files.h"
#include "framework/io/hdf5.h"

namespace keel::io {
namespace {

constexpr uint64_t kChunk_bytes = 64 << 10;

// The format whose files carry the mark "open for writing".
FileOptions options() {
  FileOptions options;
  options.oldest_format = H5F_LIBVER_V110;
  options.lock = false;
  return options;
}

std::vector<uint64_t> with_rows(uint64_t rows, std::span<const uint64_t> dims) {
  std::vector<uint64_t> all = {rows};
  all.insert(all.end(), dims.begin(), dims.end());
  return all;
}

// A dataset of no rows yet, in chunks of about 64 KiB.
template <Element T>
void create_growing(Group& group, const std::string& name, std::span<const uint64_t> dims) {
  const uint64_t rows = std::max<uint64_t>(1, kChunk_bytes / std::max<uint64_t>(1, elements_of(dims) * sizeof(T)));
  group.create_dataset<T>(name, with_rows(0, dims),
                          {.chunk = with_rows(rows, dims), .largest = with_rows(H5S_UNLIMITED, dims)});
}

template <Element T>
void append_rows(Group& group, const std::string& name, std::span<const T> values, uint64_t rows) {
  Dataset dataset = group.open_dataset(name);
  std::vector<uint64_t> offset(dataset.dims().size(), 0), count = dataset.dims(), grown = dataset.dims();
  offset[0] = grown[0];
  count[0] = rows;
  grown[0] += rows;
  dataset.resize(grown);
  dataset.write<T>(values, {offset, count});
}

// Cuts the rows after `step`. The dims of a row of each array that the file holds.
std::map<std::string, std::vector<uint64_t>> cut_file(IoContext& context, const std::string& path, int64_t step) {
  std::map<std::string, std::vector<uint64_t>> rows;
  File file = File::open(context, path, Access::read_write, options());
  for (const std::string& name : file.names()) {
    Group group = file.open_group(name);
    Dataset steps = group.open_dataset("step"), values = group.open_dataset("value");
    std::vector<int64_t> all = steps.read_all<int64_t>();
    const uint64_t kept = uint64_t(std::upper_bound(all.begin(), all.end(), step) - all.begin());
    std::vector<uint64_t> dims = values.dims();
    if (!(values.holds<float>() || values.holds<int64_t>()) || dims.empty() || dims[0] != all.size() ||
        !std::is_sorted(all.begin(), all.end()))
      throw input_error("{}: {} does not hold the rows of a telemetry file", path, name);
    dims[0] = kept;
    steps.resize(std::span(&kept, 1));
    values.resize(dims);
    rows[name].assign(dims.begin() + 1, dims.end());
  }
  file.close();
  return rows;
}

void put_aside(const std::string& path, const std::string& reason) {
  for (int number = 1;; ++number) {
    std::string aside = fmt::format("{}.broken-{}", path, number);
    if (std::filesystem::exists(aside)) continue;
    log::warning("{} is renamed to {}, and telemetry starts anew: {}", path, aside, reason);
    return rename_file(path, aside);
  }
}

}  // namespace

Telemetry::Telemetry(IoThread& io, std::string path, int64_t last_step, uint64_t rows_per_block)
    : io_(io), path_(std::move(path)), rows_per_block_(std::max<uint64_t>(1, rows_per_block)), last_step_(last_step) {
  try {
    io_.run([&](IoContext& context) {
      if (std::filesystem::exists(path_)) stored_ = cut_file(context, path_, last_step);
    });
  } catch (const Error& error) {
    put_aside(path_, error.what());
  }
}

Telemetry::~Telemetry() {
  try {
    flush();
  } catch (const std::exception& error) {
    log::error("{}", error.what());
  }
}

void Telemetry::declare(const std::string& name, std::vector<uint64_t> dims) {
  require(!name.empty() && name.find('/') == name.npos && !arrays_.contains(name),
          "telemetry cannot hold an array '{}'", name);
  const auto stored = stored_.find(name);
  if (stored != stored_.end() && stored->second != dims)
    throw input_error("{}: {} has rows of [{}], but this run makes [{}]: remove or rename the file", path_, name,
                      fmt::join(stored->second, ", "), fmt::join(dims, ", "));
  arrays_[name] = {.dims = std::move(dims), .last_step = last_step_};
}

void Telemetry::append(const std::string& name, int64_t step, std::span<const float> values) {
  append_row(name, step, values);
}

void Telemetry::append(const std::string& name, int64_t step, std::span<const int64_t> values) {
  append_row(name, step, values);
}

template <class T>
void Telemetry::append_row(const std::string& name, int64_t step, std::span<const T> values) {
  auto found = arrays_.find(name);
  require(found != arrays_.end(), "telemetry: '{}' is not declared", name);
  Array& array = found->second;
  require(values.size() == elements_of(array.dims), "telemetry: {} values for an array {} of {}", values.size(), name,
          elements_of(array.dims));
  require(step > array.last_step, "telemetry: step {} of {} comes after step {}", step, name, array.last_step);
  array.last_step = step;
  array.steps.push_back(step);
  if (!std::holds_alternative<std::vector<T>>(array.values)) array.values = std::vector<T>();
  auto& waiting = std::get<std::vector<T>>(array.values);
  waiting.insert(waiting.end(), values.begin(), values.end());
  if (array.steps.size() >= rows_per_block_) flush();
}

void Telemetry::flush() {
  Arrays block;
  uint64_t bytes = 0;
  for (auto& [name, array] : arrays_) {
    if (array.steps.empty()) continue;
    std::visit(
        [&]<class T>(std::vector<T>& values) {
          bytes += values.size() * sizeof(T) + array.steps.size() * sizeof(int64_t);
          block[name] = {array.dims, std::exchange(array.steps, {}), std::exchange(values, {}), array.last_step};
        },
        array.values);
  }
  if (block.empty()) return;
  io_.submit([path = path_, block = std::move(block)](IoContext& context) { write_block(context, path, block); },
             bytes);
}

void Telemetry::write_block(IoContext& context, const std::string& path, const Arrays& block) {
  File file = std::filesystem::exists(path) ? File::open(context, path, Access::read_write, options())
                                            : File::create(context, path, options());
  for (const auto& [name, array] : block) {
    const bool known = file.has(name);
    Group group = known ? file.open_group(name) : file.create_group(name);
    if (!known) create_growing<int64_t>(group, "step", {});
    append_rows<int64_t>(group, "step", array.steps, array.steps.size());
    std::visit(
        [&]<class T>(const std::vector<T>& values) {
          if (!known) create_growing<T>(group, "value", array.dims);
          append_rows<T>(group, "value", values, array.steps.size());
        },
        array.values);
  }
  file.close();
}

}  // namespace keel::io
