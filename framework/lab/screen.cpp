#include "framework/lab/screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "framework/base/text.h"
#include "framework/lab/ablation.h"
#include "framework/lab/events.h"

namespace keel::lab {
namespace {

constexpr std::streamoff kTailBytes = 128 << 10;
constexpr uint64_t kMostSinceEvaluation_bytes = 4 << 20;  // about 8,000 steps; read anew for every picture

// The whole lines in the last 128 KiB of a JSON lines file; none where there is no file.
std::vector<io::Json> tail_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  file.seekg(0, std::ios::end);
  const std::streamoff size = file.tellg(), begin = std::max<std::streamoff>(0, size - kTailBytes);
  file.seekg(begin);
  std::string line;
  if (begin > 0) std::getline(file, line);  // the rest of a line that began before
  std::vector<io::Json> lines;
  while (std::getline(file, line))
    if (auto object = io::parse_json_line(line)) lines.push_back(std::move(*object));  // the last may be half written
  return lines;
}

// What the end of metrics.jsonl says.
struct Now {
  int64_t step = 0;
  double loss = std::nan(""), lr = std::nan(""), gradient_norm = std::nan("");
  double tokens_per_second = std::nan("");
  std::vector<double> losses, logits;
};

Now now_of(const std::string& directory) {
  Now now;
  for (const io::Json& line : tail_of(directory + "/metrics.jsonl")) {
    if (line.contains("valid_loss")) continue;
    now.step = line.value("step", int64_t(0));
    now.loss = io::number(line, "loss");
    now.lr = io::number(line, "lr");
    now.gradient_norm = io::number(line, "gradient_norm");
    now.tokens_per_second = io::number(line, "tokens_per_second");
    now.losses.push_back(now.loss);
    now.logits.push_back(io::number(line, "largest_logit"));
  }
  return now;
}

// Further back than what is shown of steps.
std::string held_out(const std::string& directory) {
  const std::string path = directory + "/metrics.jsonl";
  if (const auto line = io::last_line_with(path, "valid_loss", kMostSinceEvaluation_bytes))
    return fmt::format("{:>9.4f}  at step {}", io::number(*line, "valid_loss"), line->value("step", int64_t(0)));
  std::error_code absent;
  const uintmax_t bytes = std::filesystem::file_size(path, absent);
  return absent || bytes <= kMostSinceEvaluation_bytes ? "none yet" : "none of late";
}

// In characters, not bytes: UTF-8's later bytes begin with 10.
std::string cut(const std::string& text, size_t columns) {
  size_t characters = 0, end = 0;
  for (; end < text.size(); ++end) {
    characters += (static_cast<unsigned char>(text[end]) & 0xC0) != 0x80;
    if (characters > columns) break;
  }
  return text.substr(0, end);
}

std::string line_of_event(const io::Json& event) {
  return fmt::format("step {:<8} {:<14} {}", event.value("step", int64_t(0)), event.value("event", ""),
                     event.value("reason", event.value("change", "")));
}

std::vector<std::string> run_screen(const std::string& directory, ScreenSize size) {
  const Now now = now_of(directory);
  const size_t width = std::max<size_t>(20, size.columns - 30);
  std::vector<std::string> lines = {
      fmt::format("{}  step {}  lr {:.2e}  |g| {:.3f}  {} tok/s", directory, now.step, now.lr, now.gradient_norm,
                  human_count(now.tokens_per_second)),
      fmt::format("loss      {:>9.4f}  {}", now.loss, sparkline(now.losses, width)),
      fmt::format("max logit {:>9.4g}  {}", now.logits.empty() ? std::nan("") : now.logits.back(),
                  sparkline(now.logits, width)),
      fmt::format("held-out  {:>9}", held_out(directory)), ""};
  const std::vector<io::Json> events = tail_of(directory + "/events.jsonl");
  const size_t room = size.rows > lines.size() ? size.rows - lines.size() : 0;
  for (size_t i = events.size() - std::min(events.size(), room); i < events.size(); ++i)
    lines.push_back(line_of_event(events[i]));
  return lines;
}

std::string line_of_cell(const Ablation& ablation, size_t index) {
  const Cell& cell = ablation.plan.cells[index];
  if (const auto& result = ablation.results[index])
    return fmt::format("{:<34} {:<9} loss {:>8.4f}  max logit {:>9.4g}  {}", cell.name, name_of(result->end),
                       result->valid_loss, result->largest_logit, result->lost.empty() ? "" : "lost");
  const CellState state = ablation.state(index);
  if (state != CellState::begun)
    return fmt::format("{:<34} {:<9} {}", cell.name, name_of(state), ablation.failures[index]);
  const Now now = now_of(cell_directory(ablation.directory, cell));
  if (now.step == 0) return fmt::format("{:<34} {}", cell.name, name_of(state));
  return fmt::format("{:<34} step {:<4} loss {:>8.4f}  max logit {:>9.4g}  {}", cell.name, now.step, now.loss,
                     now.logits.back(), sparkline(now.losses, 20));
}

// The last troubles of each of these cells, at most `most` lines in all: events do not say when they were, so cells
// share the room.
std::vector<std::string> troubles_of(const Ablation& ablation, const std::vector<size_t>& cells, size_t most) {
  std::vector<std::vector<std::string>> troubles;
  for (size_t index : cells) {
    const Cell& cell = ablation.plan.cells[index];
    std::vector<std::string> lines;
    for (const io::Json& event : tail_of(cell_directory(ablation.directory, cell) + "/events.jsonl"))
      if (severity(event) >= 2) lines.push_back(fmt::format("{:<34} {}", cell.name, line_of_event(event)));
    if (!lines.empty()) troubles.push_back(std::move(lines));
  }
  std::vector<std::string> shown;
  for (size_t i = 0; i < troubles.size(); ++i) {
    const size_t cells_left = troubles.size() - i, share = (most - shown.size() + cells_left - 1) / cells_left;
    shown.insert(shown.end(), troubles[i].end() - std::ptrdiff_t(std::min(share, troubles[i].size())),
                 troubles[i].end());
  }
  return shown;
}

void shorten(std::vector<std::string>& lines, size_t rows) {
  if (lines.size() <= rows) return;
  const size_t hidden = lines.size() - rows + 1;
  lines.resize(rows - 1);
  lines.push_back(fmt::format("... and {} more", hidden));
}

// Cells that have begun first, then those that ended or failed, then those that wait; below, what
// troubles the first, for which a third of the screen is theirs where cells would fill it.
std::vector<std::string> ablation_screen(const std::string& directory, ScreenSize size) {
  const Ablation ablation = read_ablation(directory);
  std::vector<size_t> begun, ended, waiting;
  for (size_t i = 0; i < ablation.results.size(); ++i) {
    const CellState state = ablation.state(i);
    (state == CellState::begun ? begun : state == CellState::waiting ? waiting : ended).push_back(i);
  }
  std::vector<std::string> lines = {fmt::format("{}  {} of {} cells ended, {} failed", directory, ablation.finished(),
                                                ablation.results.size(), ablation.failed())};
  for (const auto* part : {&begun, &ended, &waiting})
    for (size_t index : *part) lines.push_back(line_of_cell(ablation, index));
  const size_t free = size.rows - std::min(size.rows, lines.size()), room = std::max(size.rows / 3, free);
  std::vector<std::string> troubles = troubles_of(ablation, begun, room - std::min<size_t>(room, 1));
  if (!troubles.empty()) troubles.insert(troubles.begin(), "");
  shorten(lines, size.rows - troubles.size());
  lines.insert(lines.end(), troubles.begin(), troubles.end());
  return lines;
}

}  // namespace

std::string sparkline(const std::vector<double>& values, size_t columns) {
  constexpr const char* kHeights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const size_t first = values.size() - std::min(values.size(), columns);
  double low = INFINITY, high = -INFINITY;
  for (size_t i = first; i < values.size(); ++i)
    if (std::isfinite(values[i])) low = std::min(low, values[i]), high = std::max(high, values[i]);
  if (!(low <= high)) return "";
  std::string line;
  for (size_t i = first; i < values.size(); ++i) {
    const double height = high > low ? (values[i] - low) / (high - low) : 0;
    line += std::isfinite(values[i]) ? kHeights[size_t(std::lround(7 * height))] : "x";
  }
  return fmt::format("{:.4g} {} {:.4g}", low, line, high);
}

std::vector<std::string> screen_of(const std::string& directory, ScreenSize size) {
  std::vector<std::string> lines;
  if (is_ablation(directory))
    lines = ablation_screen(directory, size);
  else if (std::filesystem::exists(directory + "/metrics.jsonl"))
    lines = run_screen(directory, size);
  else
    throw input_error("{}: no run and no ablation here; they are kept in runs/NAME", directory);
  if (lines.size() > size.rows) lines.resize(size.rows);
  for (std::string& line : lines) line = cut(line, size.columns);
  return lines;
}

}  // namespace keel::lab
