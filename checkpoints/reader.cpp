#include "checkpoints/reader.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "checkpoints/parts.h"
#include "checkpoints/user_block.h"
#include "framework/base/log.h"
#include "framework/comm/agreement.h"
#include "framework/io/crc32c.h"
#include "framework/io/hdf5.h"
#include "framework/tensor/copy.h"

namespace keel::checkpoints {
namespace {

Shape shape_of(const std::vector<uint64_t>& dims, const std::string& name) {
  if (dims.empty() || dims.size() > Shape::kMaxDims) throw input_error("{}: a tensor of {} dims", name, dims.size());
  std::vector<int64_t> sizes(dims.begin(), dims.end());
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) throw input_error("{}: a tensor without elements", name);
  return Shape(sizes);
}

std::string text_of(const std::vector<uint64_t>& dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

// Reads one tensor tile by tile and checks each.
class TensorReader {
 public:
  TensorReader(const io::File& file, const std::string& path, int64_t tile_elements)
      : name_(file.name() + ": " + path),
        values_(file.open_dataset(path)),
        checksums_(file.open_dataset(checksums_of(path)).read_all<uint32_t>()),
        shape_(shape_of(values_.dims(), name_)),
        tiling_(shape_, tile_elements) {
    if (int64_t(checksums_.size()) != tiling_.tiles())
      throw input_error("{}: {} checksums for {} tiles", name_, checksums_.size(), tiling_.tiles());
  }

  const Shape& shape() const { return shape_; }
  const Tiling& tiling() const { return tiling_; }
  const std::vector<float>& tile(int64_t index) {
    const io::Slab slab = slab_of(shape_, tiling_, index);
    buffer_.resize(size_t(tiling_.elements(index)));
    values_.read<float>(buffer_, slab);
    if (io::crc32c(std::as_bytes(std::span(buffer_))) != checksums_[size_t(index)])
      throw input_error("{}: rows {} to {} are damaged: their checksum differs", name_, slab.offset[0],
                        slab.offset[0] + slab.count[0] - 1);
    return buffer_;
  }

 private:
  std::string name_;
  io::Dataset values_;
  std::vector<uint32_t> checksums_;
  Shape shape_;
  Tiling tiling_;
  std::vector<float> buffer_;
};

int64_t tile_elements_of(const io::File& file) {
  const int64_t elements = file.read_scalar<int64_t>("tile_elements");
  if (elements < 1 || elements > (int64_t(1) << 30))
    throw input_error("{}: tiles of {} elements", file.name(), elements);
  return elements;
}

// A file of which every byte outside the tensors is as it was written, and so are those of its parts.
struct CheckedFile {
  io::File file;
  std::vector<std::string> parts;
};

CheckedFile open_checked(io::IoContext& context, const std::string& path) {
  constexpr const char* kVersion = "format_version";
  verify_user_block(path);
  io::File file = io::File::open(context, path, io::Access::read, {.lock = false});
  if (file.has(kVersion) && !file.checked_links(kVersion).empty())
    throw input_error("{}: a link in place of {}", path, kVersion);
  const int64_t version = file.read_scalar<int64_t>(kVersion);
  if (version != kFormatVersion)
    throw input_error("{}: format version {}, and this program reads version {}", path, version, kFormatVersion);
  std::vector<std::string> parts = verified_parts(context, file);
  return {std::move(file), std::move(parts)};
}

// Stays open from one job of the I/O thread to the next, each of which has the limit to itself: reading takes as long
// as the file is large.
class OpenFile {
 public:
  OpenFile(io::IoThread& io, const std::string& path, double limit_seconds)
      : io_(io), path_(path), limit_seconds_(limit_seconds) {
    job("opening", [&](io::IoContext& context) { checked_.emplace(open_checked(context, path)); });
  }
  ~OpenFile() {
    try {
      job("closing", [&](io::IoContext&) { checked_.reset(); });
    } catch (const std::exception& error) {
      log::error("{}", error.what());
    }
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  // f(file) on the I/O thread.
  template <class F>
  auto read(const char* doing, F f) {
    return job(doing, [&](io::IoContext&) { return f(std::as_const(*checked_)); });
  }

 private:
  template <class Job>
  auto job(const char* doing, Job job) -> std::invoke_result_t<Job&, io::IoContext&> {
    return run_within(limit_seconds_, io_, fmt::format("{} {}", doing, path_), job);
  }

  io::IoThread& io_;
  const std::string path_;
  const double limit_seconds_;
  std::optional<CheckedFile> checked_;
};

train::Probe read_probe(const io::File& file) {
  if (!file.has("probe")) return {};
  train::Probe probe{file.open_dataset("probe/tokens").read_all<int32_t>(),
                     file.open_dataset("probe/targets").read_all<int32_t>(), file.read_scalar<double>("probe/loss")};
  if (probe.tokens.size() != probe.targets.size())
    throw input_error("{}: a probe of {} tokens and {} targets", file.name(), probe.tokens.size(),
                      probe.targets.size());
  return probe;
}

RunState read_state(const io::File& file) {
  RunState state;
  state.progress.step = file.read_scalar<int64_t>("run/step");
  state.progress.updates = file.read_scalar<int64_t>("run/updates");
  state.progress.tokens_consumed = file.read_scalar<int64_t>("run/tokens_consumed");
  state.progress.samples = data::SamplePosition::from_numbers(file.open_dataset("run/samples").read_all<int64_t>());
  if (state.progress.updates < 0 || state.progress.updates > state.progress.step || state.progress.tokens_consumed < 0)
    throw input_error("{}: {} updates and {} tokens in {} steps", file.name(), state.progress.updates,
                      state.progress.tokens_consumed, state.progress.step);
  state.config = file.read_text("run/config");
  state.environment = file.read_text("run/environment");
  state.data_fingerprint = file.read_text("run/data_fingerprint");
  state.qk_norm = file.read_text("run/qk_norm");
  state.hooks = file.read_text("run/hooks");
  state.probe = read_probe(file);
  state.weights_only = !file.has(group_of(TensorKind::moment1));
  return state;
}

void check_names(const io::File& file, const LocalTensors& tensors, const std::string& qk_norm) {
  std::map<std::string, std::vector<uint64_t>> stored;
  for (const std::string& name : file.open_group(group_of(TensorKind::weight)).names())
    stored[name] = file.open_dataset(path_of(TensorKind::weight, name)).dims();
  std::vector<std::string> wrong;
  for (const nn::Parameter& parameter : tensors.parameters.all()) {
    const std::string& name = parameter.spec.name;
    const auto found = stored.find(name);
    if (found == stored.end()) {
      wrong.push_back(name + " is missing");
      continue;
    }
    const std::vector<uint64_t> wanted = dims_of(parameter.spec.shape);
    if (found->second != wanted)
      wrong.push_back(fmt::format("{} is {} there and {} here", name, text_of(found->second), text_of(wanted)));
    stored.erase(found);
  }
  for (const auto& [name, dims] : stored) wrong.push_back(name + " is not expected");
  const std::string there = file.read_text("run/qk_norm");
  if (there != qk_norm) wrong.push_back(fmt::format("QK-Norm is \"{}\" there and \"{}\" here", there, qk_norm));
  if (!wrong.empty()) throw input_error("{} does not fit this model: {}", file.name(), fmt::join(wrong, "; "));
  if (tensors.optimizer && !file.has(group_of(TensorKind::moment1)))
    throw input_error("{} holds weights only: there are no optimizer moments to go on with", file.name());
}

void read_tensor(const io::File& file, const LocalTensors& tensors, const LogicalTensor& tensor,
                 int64_t tile_elements) {
  const std::vector<Run> runs = runs_to_read(tensors, tensor);
  if (runs.empty()) return;
  TensorReader reader(file, tensor.path(), tile_elements);
  if (reader.shape() != tensor.shape())
    throw input_error("{}: {} is {} there and {} here", file.name(), tensor.path(), reader.shape(), tensor.shape());
  size_t next = 0;
  for (int64_t index = 0; index < reader.tiling().tiles() && next < runs.size(); ++index) {
    const int64_t begin = reader.tiling().begin(index), end = begin + reader.tiling().elements(index);
    if (runs[next].logical >= end) continue;
    const std::vector<float>& values = reader.tile(index);
    for (size_t i = next; i < runs.size() && runs[i].logical < end; ++i) {
      const int64_t first = std::max(begin, runs[i].logical), last = std::min(end, runs[i].end());
      const Shape shape = {last - first};
      copy(Tensor(runs[i].data + (first - runs[i].logical), shape, DType::f32, tensor.parameter->master.device()),
           ConstTensor(values.data() + (first - begin), shape, DType::f32));
    }
    while (next < runs.size() && runs[next].end() <= end) ++next;
  }
}

void step(const ReadOptions& options, const std::function<void()>& f) {
  options.agreeing ? comm::together(*options.agreeing, f) : f();
}

}  // namespace

Contents read_contents(io::IoThread& io, const std::string& path, double limit_seconds) {
  OpenFile open(io, path, limit_seconds);
  return open.read("reading", [&](const CheckedFile& checked) {
    const auto& [file, parts] = checked;
    Contents contents{read_state(file), {}, int64_t(parts.size()), int64_t(std::filesystem::file_size(path))};
    for (const std::string& part : parts) contents.bytes += int64_t(std::filesystem::file_size(part));
    for (const std::string& name : file.open_group(group_of(TensorKind::weight)).names())
      contents.parameters.push_back({name, file.open_dataset(path_of(TensorKind::weight, name)).dims()});
    return contents;
  });
}

void read_tensors(io::IoThread& io, const std::string& path, const LocalTensors& tensors, const std::string& qk_norm,
                  const ReadOptions& options) {
  std::optional<OpenFile> open;
  int64_t tile_elements = 0;
  step(options, [&] {
    open.emplace(io, path, options.limit_seconds);
    open->read("loading", [&](const CheckedFile& checked) {
      check_names(checked.file, tensors, qk_norm);
      tile_elements = tile_elements_of(checked.file);
    });
  });
  for (const LogicalTensor& tensor : tensors_of(tensors))
    step(options, [&] {
      open->read("loading",
                 [&](const CheckedFile& checked) { read_tensor(checked.file, tensors, tensor, tile_elements); });
    });
}

std::map<std::string, std::vector<float>> read_weights(io::IoThread& io, const std::string& path,
                                                       const std::vector<std::string>& names) {
  std::map<std::string, std::vector<float>> weights;
  OpenFile open(io, path, kIoLimit_seconds);
  for (const std::string& name : names)
    open.read("reading", [&](const CheckedFile& checked) {
      TensorReader reader(checked.file, path_of(TensorKind::weight, name), tile_elements_of(checked.file));
      std::vector<float>& values = weights[name];
      for (int64_t index = 0; index < reader.tiling().tiles(); ++index) {
        const std::vector<float>& tile = reader.tile(index);
        values.insert(values.end(), tile.begin(), tile.end());
      }
    });
  return weights;
}

void verify_tensors(io::IoThread& io, const std::string& path, const std::function<void(double)>& progress,
                    nn::AxisPosition share, const ReadOptions& options) {
  std::optional<OpenFile> open;
  std::vector<std::string> tensors;
  step(options, [&] {
    open.emplace(io, path, options.limit_seconds);
    open->read("checking", [&](const CheckedFile& checked) {
      for (TensorKind kind : kTensorKinds)
        if (checked.file.has(group_of(kind)))
          for (const std::string& name : checked.file.open_group(group_of(kind)).names())
            tensors.push_back(path_of(kind, name));
    });
  });
  constexpr size_t kBetweenMeetings = 16;  // tensors: one may have fewer tiles than there are ranks
  int64_t number = 0;
  for (size_t first = 0; first < tensors.size(); first += kBetweenMeetings) {
    const size_t last = std::min(tensors.size(), first + kBetweenMeetings);
    step(options, [&] {
      for (size_t i = first; i < last; ++i)
        open->read("checking", [&](const CheckedFile& checked) {
          TensorReader reader(checked.file, tensors[i], tile_elements_of(checked.file));
          for (int64_t tile = 0; tile < reader.tiling().tiles(); ++tile)
            if (number++ % share.size == share.index) reader.tile(tile);
        });
    });
    progress(double(last) / double(tensors.size()));
  }
}

}  // namespace keel::checkpoints
