#include "framework/lab/run_report.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "framework/base/text.h"
#include "framework/lab/cell_result.h"
#include "framework/lab/events.h"
#include "framework/lab/spike_scores.h"
#include "framework/lab/statistics.h"

namespace keel::lab {
namespace {

Series curve(const RunRecord& run, const std::string& label, double StepRecord::*value, int color) {
  Series series{.label = label, .color = color};
  for (const StepRecord& step : run.steps) {
    series.x.push_back(double(step.step));
    series.y.push_back(step.*value);
  }
  return series;
}

// Steps at which something happened.
std::vector<double> marked_steps(const RunRecord& run) {
  std::vector<double> marks;
  for (const io::Json* event : shown_events(run, 200)) {
    const std::string kind = event->value("event", "");
    if (kind != "start" && kind != "resume" && event->contains("step")) marks.push_back((*event)["step"].get<double>());
  }
  return marks;
}

// [layer and head][step]
HeatMap heat_map(const HeadRecord& record, HeatMap map) {
  for (int64_t step : record.steps) map.x.push_back(double(step));
  map.group = record.width;
  for (uint64_t layer = 0; layer < record.layers; ++layer) {
    map.groups.push_back(fmt::format("layer {}", layer));
    for (uint64_t head = 0; head < record.width; ++head) {
      map.rows.push_back(record.width == 1 ? fmt::format("layer {}", layer)
                         : head == 0       ? fmt::format("layer {}, head 0", layer)
                                           : fmt::format("{}", head));
      map.values.emplace_back();
      for (size_t row = 0; row < record.steps.size(); ++row)
        map.values.back().push_back(record.row(row)[layer * record.width + head]);
    }
  }
  map.x_label = "step";
  return map;
}

// Where every value is above 0 and they span more than a decade, powers of ten say more.
bool spans_decades(const HeadRecord& record) {
  double low = INFINITY, high = 0;
  for (float value : record.values)
    if (std::isfinite(value)) low = std::min(low, double(value)), high = std::max(high, double(value));
  return low > 0 && high > 10 * low;
}

// How an array of telemetry.h5 is shown.
struct HeadPicture {
  const char* name;  // in the file
  const char *title, *value, *caption;
};

constexpr HeadPicture kPictures[] = {
    {"largest_logit_distance", "Where the largest logit is.", "query - key",
     "How many positions before its query the key is; 0: the query's own."},
    {"entropy", "Entropy of attention.", "nats", "Mean over rows; near 0 a head looks at one key only."},
    {"parallel", "Share of query-key pairs with |cos| > 0.95.", "share", "On a sample of queries."},
    {"q_gain", "Largest gain of q by head.", "|gain|", ""},
    {"k_gain", "Largest gain of k by head.", "|gain|", ""},
    {"logit_scale", "Logit scale by head.", "|g|", ""},
    {"q_gain_gradient", "Gradient of the gains of q.", "norm", "L2 norm over all ranks, before clipping."},
    {"k_gain_gradient", "Gradient of the gains of k.", "norm", ""},
    {"logit_scale_gradient", "Gradient of the logit scale.", "norm", "With respect to the stored weight."},
    {"update_ratio", "Update over weights, by layer.", "|change| / |w|", "Of the layer's matrices, by L2 norm."},
    {"stream_outliers", "Outliers in the residual stream.", "share",
     "|x| > 6, absolute, of all tokens; where the whole stream grows, see its kurtosis."},
    {"stream_kurtosis", "Kurtosis of the residual stream.", "about 0", "3 for a normal distribution."},
    {"q_rms", "Root mean square of q before the norm.", "rms", ""},
    {"k_rms", "Root mean square of k before the norm.", "rms", ""}};

void add_heads(Page& page, const HeadRecord& record, const HeatMap& style, std::string caption) {
  const HeatMap map = heat_map(record, style);
  const char* kept = map.keeps_least ? "least" : "largest";
  if (record.each > 1)
    caption += fmt::format(" Each column, in the CSV too, is the {} of {} rows of telemetry.h5.", kept, record.each);
  if (map.rows.size() > kMostHeatRows && map.group > 1)
    caption += fmt::format(" By layer, the {} of its heads; the CSV has all.", kept);
  page.picture(draw(map), caption);
}

void add_heads(Page& page, const RunRecord& run, const HeadPicture& picture) {
  const HeadRecord* record = run.head(picture.name);
  if (!record) return;
  const HeatMap style{.name = std::string(picture.name) + "_heads",
                      .title = picture.title,
                      .value_label = picture.value,
                      .log_color = spans_decades(*record),
                      .keeps_least = keeps_least(picture.name)};
  add_heads(page, *record, style, picture.caption);
}

void add_bounds(Page& page, const RunRecord& run) {
  const HeadRecord* record = run.head("bound_used");
  if (!record) return;
  add_heads(
      page, *record,
      {.name = "bound_used", .title = "How much of QK-Norm's bound is used.", .value_label = "largest |s| / bound"},
      "1 would be a query and a key in parallel, both with all their length where the gain is largest.");
}

void add_curves(Page& page, const RunRecord& run) {
  const std::vector<double> marks = marked_steps(run);
  Series held_out{.label = "held-out", .color = 0, .points = true};
  for (const EvaluationRecord& evaluation : run.evaluations) {
    held_out.x.push_back(double(evaluation.step));
    held_out.y.push_back(evaluation.loss);
  }
  Chart loss{.name = "loss",
             .title = "Loss.",
             .x_label = "step",
             .y_label = "nats per token",
             .series = {curve(run, "training", &StepRecord::loss, 1)},
             .marks = marks};
  if (!held_out.x.empty()) loss.series.push_back(held_out);
  page.picture(draw(loss), marks.empty() ? "" : "Dotted lines: steps with an event (below).");
  page.picture(draw(Chart{.name = "largest_logit",
                          .title = "Largest logit of any head.",
                          .x_label = "step",
                          .y_label = "|s|",
                          .log_y = true,
                          .series = {curve(run, "largest |s|", &StepRecord::largest_logit, 1)},
                          .marks = marks}),
               "Before soft-cap and softmax.");
  add_heads(page, run, {"largest_logit", "Largest logit by layer and head.", "|s|", ""});
  add_bounds(page, run);
  for (const HeadPicture& picture : kPictures) add_heads(page, run, picture);
  page.picture(draw(Chart{.name = "gradient_norm",
                          .title = "Gradient norm.",
                          .x_label = "step",
                          .y_label = "before clipping",
                          .log_y = true,
                          .series = {curve(run, "norm", &StepRecord::gradient_norm, 1)},
                          .marks = marks}),
               "");
  page.picture(draw(Chart{.name = "lr",
                          .title = "Learning rate.",
                          .x_label = "step",
                          .y_label = "rate",
                          .series = {curve(run, "rate", &StepRecord::lr, 1)},
                          .size = {760, 260}}),
               "");
  page.picture(draw(Chart{.name = "throughput",
                          .title = "Throughput.",
                          .x_label = "step",
                          .y_label = "tokens per second",
                          .series = {curve(run, "all ranks", &StepRecord::tokens_per_second, 1)},
                          .size = {760, 260}}),
               "");
}

float largest_value(const HeadRecord& record) {
  return *std::ranges::max_element(record.values);
}

// The largest shares of NAME_saturated and NAME_flushed; nothing in a run without bf16 there.
std::optional<std::string> out_of_range(const RunRecord& run, const std::string& name) {
  const HeadRecord *saturated = run.head(name + "_saturated"), *flushed = run.head(name + "_flushed");
  if (!saturated || !flushed) return {};
  return fmt::format("{:.3g} saturated, {:.3g} flushed", largest_value(*saturated), largest_value(*flushed));
}

void add_numbers(Page& page, const RunRecord& run) {
  std::vector<double> rates, seconds;
  int64_t skipped = 0;
  for (const StepRecord& step : run.steps) {
    rates.push_back(step.tokens_per_second);
    seconds.push_back(step.seconds);
    skipped += !step.accepted;
  }
  const SpikeScores spikes = spike_scores(run.steps);
  std::vector<std::vector<std::string>> rows = {
      {"what", "value"},
      {"steps", fmt::format("{}", run.steps.back().step)},
      {"training loss at the end", fmt::format("{:.4f}", run.steps.back().loss)}};
  if (!run.evaluations.empty()) {
    const EvaluationRecord& last = run.evaluations.back();
    rows.push_back({"held-out loss", fmt::format("{:.4f} nats per token at step {}", last.loss, last.step)});
    if (last.nats_per_byte > 0) rows.push_back({"", fmt::format("{:.4f} nats per byte", last.nats_per_byte)});
  }
  rows.push_back({"largest logit of any step", fmt::format("{:.4g}", largest_logit(run))});
  if (const auto used = bound_used(run))
    rows.push_back({"largest share of its bound", fmt::format("{:.0f}%", 100 * *used)});
  for (const auto& [name, what] : {std::pair("stream", "residual stream"), {"weights", "matrices"}})
    if (const auto text = out_of_range(run, name))
      rows.push_back({fmt::format("bf16 values out of range, most of any layer's {}", what), *text});
  rows.push_back({"steps that left the weights as they were", fmt::format("{}", skipped)});
  rows.push_back({"spike score of the loss, 7 deviations of 1,000 steps", text_of_share(spikes.loss_7)});
  rows.push_back({"spike score of the gradient norm", text_of_share(spikes.gradient_7)});
  rows.push_back({"tokens per second, median", human_count(median(rates))});
  rows.push_back({"seconds per step, median", fmt::format("{:.3f}", median(seconds))});
  page.table(rows);
}

// The heads whose logits were largest at the last telemetry step, and where.
void add_places(Page& page, const RunRecord& run) {
  constexpr size_t kMost = 10;
  const HeadRecord* logits = run.head("largest_logit");
  if (!logits || run.places.empty()) return;
  std::vector<size_t> order(run.places.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return run.places[a].logit > run.places[b].logit; });
  order.resize(std::min(order.size(), kMost));
  std::vector<std::vector<std::string>> rows = {{"layer", "head", "|s|", "source", "sample", "query", "key"}};
  for (size_t head : order) {
    const PlaceRecord& place = run.places[head];
    rows.push_back({fmt::format("{}", head / logits->width), fmt::format("{}", head % logits->width),
                    fmt::format("{:.4g}", place.logit)});
    for (int64_t number : {place.source, place.sample, place.query, place.key})
      rows.back().push_back(place.source < 0 ? "" : fmt::format("{}", number));
  }
  page.heading(fmt::format("The largest logits of step {}, and where they are", run.places_step));
  page.table(rows);
  page.paragraph("With T tokens in a sample, query t of sample i is token i T + t of its source.");
}

// The part of an ablation's rule that needs no other run.
void add_verdict(Page& page, const RunRecord& run) {
  const std::string reason = lost_by_steps(run);
  page.paragraph(
      reason.empty()
          ? fmt::format("Not lost by its steps: every loss and gradient is finite, and no logit is above {:g} (largest "
                        "{:.4g}). Whether its held-out loss is below a token bigram's is for keel ablate to say.",
                        kLostLogit, largest_logit(run))
          : fmt::format("Lost: {}.", reason),
      "finding");
}

void add_events(Page& page, const RunRecord& run) {
  constexpr size_t kMost = 100;
  std::vector<std::vector<std::string>> rows = {{"step", "event", "why"}};
  for (const io::Json* event : shown_events(run, kMost))
    rows.push_back({event->contains("step") ? (*event)["step"].dump() : "", event->value("event", ""),
                    event->value("reason", "")});
  page.heading("Events");
  page.paragraph(
      fmt::format("Without saves and notes; at most {}, the severest and the last. All: events.jsonl.", kMost));
  page.table(rows);
}

}  // namespace

Page run_report(const RunRecord& run, const std::string& config) {
  if (run.steps.empty()) throw input_error("{}: the run has made no step yet", run.directory);
  Page page(std::filesystem::path(run.directory).filename().string());
  add_verdict(page, run);
  add_numbers(page, run);
  page.heading("Curves");
  add_curves(page, run);
  add_places(page, run);
  add_events(page, run);
  page.details("The resolved config", config);
  return page;
}

}  // namespace keel::lab
