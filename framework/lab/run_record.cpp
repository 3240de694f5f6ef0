#include "framework/lab/run_record.h"

#include <algorithm>
#include <filesystem>

#include "framework/base/log.h"
#include "framework/io/hdf5.h"

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

// largest_logit_place [rows, L, H, 4].
void read_places(RunRecord& run, const io::Group& group) {
  const io::Dataset values = group.open_dataset("value");
  const uint64_t layers = values.dims()[1], heads = values.dims()[2], each = layers * heads;
  const std::vector<int64_t> all = values.read_all<int64_t>();
  HeadRecord distance{group.open_dataset("step").read_all<int64_t>(), layers, heads, {}};
  for (size_t i = 0; i < all.size(); i += 4) {
    const bool nowhere = all[i] < 0;
    distance.values.push_back(nowhere ? std::numeric_limits<float>::quiet_NaN() : float(all[i + 2] - all[i + 3]));
    if (i / 4 + each >= all.size() / 4) run.places.push_back({all[i], all[i + 1], all[i + 2], all[i + 3]});
  }
  run.heads["largest_logit_distance"] = std::move(distance);
}

void read_heads(RunRecord& run, io::IoContext& context, const std::string& path) {
  io::FileOptions options;
  options.lock = false;
  const io::File file = io::File::open(context, path, io::Access::read, options);
  for (const std::string& name : file.names()) {
    const io::Group group = file.open_group(name);
    const io::Dataset values = group.open_dataset("value");
    if (name == "largest_logit_place") read_places(run, group);
    if (values.dims().size() != 3) continue;
    run.heads[name] = {group.open_dataset("step").read_all<int64_t>(), values.dims()[1], values.dims()[2],
                       values.read_all<float>()};
  }
}

}  // namespace

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
