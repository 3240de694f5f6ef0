#include "framework/lab/run_record.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include "framework/base/log.h"
#include "framework/io/hdf5.h"
#include "framework/lab/statistics.h"

namespace keel::lab {
namespace {

StepRecord step_of(const io::Json& line) {
  StepRecord step{.step = line.at("step"),
                  .loss = io::number(line, "loss"),
                  .gradient_norm = io::number(line, "gradient_norm"),
                  .lr = io::number(line, "lr"),
                  .largest_logit = io::number(line, "largest_logit"),
                  .tokens_per_second = io::number(line, "tokens_per_second"),
                  .bound_used = io::number(line, "bound_used"),
                  .accepted = line.value("verdict", "") == "proceed" || line.value("update_norm", 0.0) > 0};
  for (const char* part : {"seconds_data", "seconds_forward_backward", "seconds_reduction", "seconds_update"})
    step.seconds += io::number(line, part);
  return step;
}

// Fills `values` with rows [first, first + count).
using ReadRows = std::function<void(uint64_t first, uint64_t count, std::vector<float>& values)>;

struct RowsOfHeads {
  std::vector<int64_t> steps;
  uint64_t layers, width, row_bytes;  // row_bytes: what a row takes while it is read
};

// Slab by slab: a run of 200,000 steps with 2,000 heads has 1.5 GB in each array.
HeadRecord reduced(const RowsOfHeads& rows, bool least, const ReadRows& read) {
  constexpr uint64_t kSlab_bytes = 8 << 20;
  const uint64_t all = rows.steps.size(), size = rows.layers * rows.width;
  HeadRecord record{.layers = rows.layers, .width = rows.width};
  record.each = std::max<uint64_t>(1, (all + kMostHeadRows - 1) / kMostHeadRows);
  const uint64_t most = std::max<uint64_t>(1, kSlab_bytes / std::max<uint64_t>(1, rows.row_bytes));
  std::vector<float> slab;
  for (uint64_t first = 0; first < all; first += most) {
    const uint64_t count = std::min(most, all - first);
    read(first, count, slab);
    for (uint64_t i = 0; i < count; ++i) {
      const std::span<const float> row = std::span(slab).subspan(i * size, size);
      if ((first + i) % record.each == 0) {
        record.steps.push_back(0);
        record.values.insert(record.values.end(), row.begin(), row.end());
      } else {
        float* kept = record.values.data() + record.values.size() - size;
        for (uint64_t head = 0; head < size; ++head) kept[head] = standing_for(kept[head], row[head], least);
      }
      record.steps.back() = rows.steps[first + i];
    }
  }
  if (record.each > 1) record.last.assign(slab.end() - std::ptrdiff_t(size), slab.end());
  return record;
}

// An array of one number per head.
struct HeadArray {
  io::Dataset values;
  RowsOfHeads rows;

  HeadArray(const io::File& file, const std::string& name) : values(file.open_dataset(name + "/value")) {
    const std::vector<uint64_t>& dims = values.dims();
    rows = {file.open_dataset(name + "/step").read_all<int64_t>(), dims[1], dims[2], dims[1] * dims[2] * sizeof(float)};
  }
  void read(uint64_t first, uint64_t count, std::vector<float>& to) const {
    to.resize(count * rows.layers * rows.width);
    values.read<float>(to, {{first, 0, 0}, {count, rows.layers, rows.width}});
  }
};

// Where the largest logits of the last step with places are; nothing where their size is not known.
void read_places(RunRecord& run, const io::File& file, const std::vector<int64_t>& last, int64_t step) {
  if (!file.has("largest_logit")) return;
  const HeadArray logits(file, "largest_logit");
  const auto found = std::ranges::find(logits.rows.steps, step);
  if (found == logits.rows.steps.end()) return;
  std::vector<float> sizes;
  logits.read(uint64_t(found - logits.rows.steps.begin()), 1, sizes);
  run.places_step = step;
  for (size_t head = 0; head < std::min(sizes.size(), last.size() / 4); ++head) {
    const int64_t* place = &last[4 * head];
    run.places.push_back({place[0], place[1], place[2], place[3], sizes[head]});
  }
}

// largest_logit_place [rows, L, H, 4].
void read_distances(RunRecord& run, const io::File& file, const std::string& name) {
  const io::Dataset values = file.open_dataset(name + "/value");
  const uint64_t layers = values.dims()[1], width = values.dims()[2], row = layers * width * 4;
  const RowsOfHeads rows{file.open_dataset(name + "/step").read_all<int64_t>(), layers, width, row * sizeof(int64_t)};
  std::vector<int64_t> places;
  run.heads["largest_logit_distance"] =
      reduced(rows, false, [&](uint64_t first, uint64_t count, std::vector<float>& distances) {
        places.resize(count * row);
        values.read<int64_t>(places, {{first, 0, 0, 0}, {count, layers, width, 4}});
        distances.clear();
        for (size_t i = 0; i < places.size(); i += 4)
          distances.push_back(places[i] < 0 ? std::numeric_limits<float>::quiet_NaN()
                                            : float(places[i + 2] - places[i + 3]));
      });
  if (rows.steps.empty()) return;
  places.erase(places.begin(), places.end() - std::ptrdiff_t(row));
  read_places(run, file, places, rows.steps.back());
}

// logit / bound, of arrays that have the same steps.
void read_bounds(RunRecord& run, const io::File& file) {
  if (!file.has("largest_logit") || !file.has("logit_bound")) return;
  const HeadArray logits(file, "largest_logit"), bounds(file, "logit_bound");
  if (logits.rows.steps != bounds.rows.steps) return;
  std::vector<float> of_bounds;
  run.heads["bound_used"] =
      reduced(logits.rows, false, [&](uint64_t first, uint64_t count, std::vector<float>& shares) {
        logits.read(first, count, shares);
        bounds.read(first, count, of_bounds);
        for (size_t i = 0; i < shares.size(); ++i) shares[i] /= of_bounds.at(i);
      });
}

void read_heads(RunRecord& run, io::IoContext& context, const std::string& path) {
  io::FileOptions options;
  options.lock = false;
  const io::File file = io::File::open(context, path, io::Access::read, options);
  for (const std::string& name : file.names()) {
    if (name == "largest_logit_place") read_distances(run, file, name);
    if (file.open_dataset(name + "/value").dims().size() != 3) continue;
    const HeadArray array(file, name);
    run.heads[name] =
        reduced(array.rows, keeps_least(name),
                [&](uint64_t first, uint64_t count, std::vector<float>& to) { array.read(first, count, to); });
  }
  read_bounds(run, file);
}

}  // namespace

bool keeps_least(const std::string& name) {
  return name == "entropy";
}

const HeadRecord* RunRecord::head(const std::string& name) const {
  const auto found = heads.find(name);
  return found == heads.end() || found->second.steps.empty() ? nullptr : &found->second;
}

RunRecord read_steps(const std::string& directory) {
  RunRecord run{.directory = directory};
  const std::string metrics = directory + "/metrics.jsonl", events = directory + "/events.jsonl";
  if (!std::filesystem::exists(metrics))
    throw input_error("{}: no run here: metrics.jsonl is missing (a run is kept in runs/NAME)", directory);
  io::for_each_json_line(metrics, [&](const io::Json& line) {
    if (line.contains("valid_loss"))
      run.evaluations.push_back(
          {line.at("step"), io::number(line, "valid_loss"), io::number(line, "valid_nats_per_byte")});
    else
      run.steps.push_back(step_of(line));
  });
  if (std::filesystem::exists(events)) run.events = io::read_json_lines(events);
  return run;
}

RunRecord read_run(io::IoThread& io, const std::string& directory) {
  RunRecord run = read_steps(directory);
  const std::string telemetry = directory + "/telemetry.h5";
  if (!std::filesystem::exists(telemetry)) return run;
  try {
    io.run([&](io::IoContext& context) { read_heads(run, context, telemetry); });
  } catch (const Error& error) {
    log::warning("left out: {}", error.what());
  }
  return run;
}

double largest_logit(const RunRecord& run, int64_t after_step) {
  double largest = 0;
  for (const StepRecord& step : run.steps)
    if (step.step > after_step)
      largest = std::max(largest, std::isnan(step.largest_logit) ? INFINITY : step.largest_logit);
  return largest;
}

std::optional<double> bound_used(const RunRecord& run) {
  std::optional<double> used;
  for (const StepRecord& step : run.steps)
    if (!std::isnan(step.bound_used)) used = std::max(used.value_or(0), step.bound_used);
  return used;
}

}  // namespace keel::lab
