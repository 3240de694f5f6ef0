#include "framework/lab/ablation.h"

#include <algorithm>
#include <filesystem>

#include "framework/io/files.h"
#include "framework/io/hdf5.h"
#include "framework/lab/csv.h"

namespace keel::lab {
namespace {

constexpr uint64_t kLargestJson = 64 << 20;

std::string text_of(double value) {
  return fmt::format("{}", value);
}

std::string text_of(const std::optional<double>& value) {
  return value ? text_of(*value) : std::string();
}

using Column = std::pair<const char*, std::string (*)(const CellResult&)>;

constexpr Column kResults[] = {
    {"end", [](const CellResult& r) { return std::string(name_of(r.end)); }},
    {"steps", [](const CellResult& r) { return std::to_string(r.steps); }},
    {"first_loss", [](const CellResult& r) { return text_of(r.first_loss); }},
    {"valid_loss", [](const CellResult& r) { return text_of(r.valid_loss); }},
    {"valid_nats_per_byte", [](const CellResult& r) { return text_of(r.valid_nats_per_byte); }},
    {"train_loss", [](const CellResult& r) { return text_of(r.train_loss); }},
    {"bigram_loss", [](const CellResult& r) { return text_of(r.bigram_loss); }},
    {"largest_logit", [](const CellResult& r) { return text_of(r.largest_logit); }},
    {"last_logit", [](const CellResult& r) { return text_of(r.last_logit); }},
    {"bound_used", [](const CellResult& r) { return text_of(r.bound_used); }},
    {"entropy", [](const CellResult& r) { return text_of(r.entropy); }},
    {"least_entropy", [](const CellResult& r) { return text_of(r.least_entropy); }},
    {"outlier_share", [](const CellResult& r) { return text_of(r.outlier_share); }},
    {"kurtosis", [](const CellResult& r) { return text_of(r.kurtosis); }},
    {"outside_bound", [](const CellResult& r) { return std::to_string(r.outside_bound); }},
    {"skipped_steps", [](const CellResult& r) { return std::to_string(r.skipped_steps); }},
    {"lowered_rates", [](const CellResult& r) { return std::to_string(r.lowered_rates); }},
    {"rollbacks", [](const CellResult& r) { return std::to_string(r.rollbacks); }},
    {"fallbacks", [](const CellResult& r) { return std::to_string(r.fallbacks); }},
    {"given_up_logit", [](const CellResult& r) { return text_of(r.given_up_logit); }},
    {"loss_spikes_7", [](const CellResult& r) { return text_of(r.spikes.loss_7); }},
    {"loss_spikes_6", [](const CellResult& r) { return text_of(r.spikes.loss_6); }},
    {"gradient_spikes_7", [](const CellResult& r) { return text_of(r.spikes.gradient_7); }},
    {"gradient_spikes_6", [](const CellResult& r) { return text_of(r.spikes.gradient_6); }},
    {"lost", [](const CellResult& r) { return r.lost; }},
    {"reason", [](const CellResult& r) { return r.reason; }}};

constexpr Column kCosts[] = {
    {"seconds_per_step", [](const CellResult& r) { return text_of(r.seconds_per_step); }},
    {"quick_seconds_per_step", [](const CellResult& r) { return text_of(r.quick_seconds_per_step); }},
    {"tokens_per_second", [](const CellResult& r) { return text_of(r.tokens_per_second); }},
    {"memory_bytes", [](const CellResult& r) { return text_of(r.memory_bytes); }},
    {"peak_resident_bytes", [](const CellResult& r) { return text_of(r.peak_resident_bytes); }}};

// What a table has of a cell: its columns; of a failed one, in a table that says how cells ended, that and the reason.
// Nothing where there is no line for it.
std::vector<std::string> values_of(const Ablation& ablation, size_t index, std::span<const Column> columns) {
  std::vector<std::string> values;
  const auto& result = ablation.results[index];
  const bool failed = ablation.state(index) == CellState::failed && columns.front().first == std::string("end");
  if (!result && !failed) return values;
  for (const auto& [name, value] : columns)
    values.push_back(result                          ? value(*result)
                     : name == std::string("end")    ? name_of(CellState::failed)
                     : name == std::string("reason") ? ablation.failures[index]
                                                     : "");
  return values;
}

// A line per cell: what it is, then the columns.
std::string table(const Ablation& ablation, std::span<const Column> columns) {
  std::vector<std::string> fields = {"cell", "arm", "seed"};
  for (const Axis& axis : ablation.plan.axes) fields.push_back(axis.key);
  for (const auto& [name, value] : columns) fields.push_back(name);
  std::string text = csv_line(fields);
  for (size_t i = 0; i < ablation.results.size(); ++i) {
    const std::vector<std::string> values = values_of(ablation, i, columns);
    if (values.empty()) continue;
    const Cell& cell = ablation.plan.cells[i];
    fields = {cell.name, cell.arm, std::to_string(cell.seed)};
    fields.insert(fields.end(), cell.values.begin(), cell.values.end());
    fields.insert(fields.end(), values.begin(), values.end());
    text += csv_line(fields);
  }
  return text;
}

void write_curves(io::Location& group, const RunRecord& run) {
  auto write = [&]<class T>(const char* name, const std::vector<T>& values) {
    const uint64_t size = values.size();
    group.create_dataset<T>(name, std::span(&size, 1)).template write<T>(values);
  };
  std::vector<int64_t> steps, evaluated;
  std::vector<double> losses, logits, held_out;
  for (const StepRecord& step : run.steps) {
    steps.push_back(step.step);
    losses.push_back(step.loss);
    logits.push_back(step.largest_logit);
  }
  for (const EvaluationRecord& evaluation : run.evaluations) {
    evaluated.push_back(evaluation.step);
    held_out.push_back(evaluation.loss);
  }
  write("step", steps);
  write("loss", losses);
  write("largest_logit", logits);
  write("evaluated_step", evaluated);
  write("valid_loss", held_out);
}

// /plan, /cells_csv and /costs_csv are texts; /curves/CELL holds a run's.
void write_hdf5(io::IoThread& io, const Ablation& ablation, const std::string& path) {
  io.run([&](io::IoContext& context) {
    io::File file = io::File::create(context, path);
    file.write_text("plan", to_json(ablation.plan).dump(2));
    file.write_text("cells_csv", table(ablation, kResults));
    file.write_text("costs_csv", table(ablation, kCosts));
    for (size_t i = 0; i < ablation.results.size(); ++i) {
      if (!ablation.results[i]) continue;
      const Cell& cell = ablation.plan.cells[i];
      io::Group group = file.create_group("curves/" + cell.name);
      write_curves(group, read_steps(cell_directory(ablation.directory, cell)));
    }
    file.close();
  });
}

// Nothing is left of one that could not be written.
void replace_hdf5(io::IoThread& io, const Ablation& ablation) {
  const std::string path = ablation.directory + "/ablation.h5", part = io::temporary_name(path);
  try {
    write_hdf5(io, ablation, part);
    io::rename_file(part, path);
  } catch (...) {
    io::discard_file(part);
    throw;
  }
}

io::Json read_json(const std::string& path) {
  return io::Json::parse(io::read_file(path, kLargestJson), nullptr, false);
}

}  // namespace

const char* name_of(CellState state) {
  constexpr const char* kNames[] = {"waiting", "begun", "failed", "finished"};
  return kNames[size_t(state)];
}

CellState Ablation::state(size_t index) const {
  if (results[index]) return CellState::finished;
  if (!failures[index].empty()) return CellState::failed;
  const bool begun = std::filesystem::exists(cell_directory(directory, plan.cells[index]));
  return begun ? CellState::begun : CellState::waiting;
}

size_t Ablation::finished() const {
  return size_t(std::count_if(results.begin(), results.end(), [](const auto& result) { return result.has_value(); }));
}

size_t Ablation::failed() const {
  return size_t(std::count_if(failures.begin(), failures.end(), [](const auto& reason) { return !reason.empty(); }));
}

std::string cell_directory(const std::string& directory, const Cell& cell) {
  return directory + "/cells/" + cell.name;
}

std::string result_path(const std::string& cell_directory) {
  return cell_directory + "/result.json";
}

std::string failure_path(const std::string& cell_directory) {
  return cell_directory + "/failure.json";
}

void write_result(const std::string& cell_directory, const CellResult& result) {
  io::write_file(result_path(cell_directory), to_json(result).dump(2) + "\n");
}

void write_failure(const std::string& cell_directory, const std::string& reason) {
  const io::Json json = {{"reason", reason}};
  io::write_file(failure_path(cell_directory), json.dump(2) + "\n");
}

std::optional<CellResult> read_result(const std::string& cell_directory) {
  const std::string path = result_path(cell_directory);
  if (!std::filesystem::exists(path)) return std::nullopt;
  const io::Json json = read_json(path);
  if (json.is_discarded()) throw input_error("{}: the file is damaged; remove it, and the cell runs again", path);
  try {
    return result_from_json(json);
  } catch (const io::Json::exception&) {
    throw input_error("{}: written by another version; remove it, and the cell runs again", path);
  }
}

std::string read_failure(const std::string& cell_directory) {
  const std::string path = failure_path(cell_directory);
  if (!std::filesystem::exists(path)) return "";
  try {
    return read_json(path).at("reason");
  } catch (const std::exception&) {  // whoever tries the cell again removes the file at any moment
    return "";
  }
}

Ablation collect(const std::string& directory, const Plan& plan) {
  Ablation ablation{directory, plan, {}, {}};
  for (const Cell& cell : plan.cells) {
    const std::string folder = cell_directory(directory, cell);
    ablation.results.push_back(read_result(folder));
    ablation.failures.push_back(ablation.results.back() ? "" : read_failure(folder));
  }
  return ablation;
}

bool is_ablation(const std::string& directory) {
  return std::filesystem::exists(directory + "/ablation.json");
}

Ablation read_ablation(const std::string& directory) {
  const io::Json json = read_json(directory + "/ablation.json");
  if (json.is_discarded())
    throw input_error("{}/ablation.json: the file is damaged: remove it and start keel ablate again", directory);
  return collect(directory, plan_from_json(json));
}

std::string cells_csv(const Ablation& ablation) {
  return table(ablation, kResults);
}

std::string costs_csv(const Ablation& ablation) {
  return table(ablation, kCosts);
}

void write_tables(io::IoThread& io, const std::string& directory, const Plan& plan) {
  Ablation ablation = collect(directory, plan);
  // Another process may have ended a cell since, and have written its tables before these.
  for (size_t written = SIZE_MAX; written != ablation.finished(); ablation = collect(directory, plan)) {
    written = ablation.finished();
    io::write_file(directory + "/cells.csv", cells_csv(ablation));
    io::write_file(directory + "/costs.csv", costs_csv(ablation));
    replace_hdf5(io, ablation);
  }
}

}  // namespace keel::lab
