#include "framework/train/run_files_hook.h"

#include <array>

#include "framework/train/head_table.h"

namespace keel::train {
namespace {

double share(double operations_per_token, double tokens_per_second, double peak) {
  return peak > 0 ? operations_per_token * tokens_per_second / peak : 0;
}

}  // namespace

double Throughput::mfu_full(const StepReport& report) const {
  return share(operations_full, tokens_per_second(report), peak_operations_per_second);
}

double Throughput::mfu_causal(const StepReport& report) const {
  return share(operations_causal, tokens_per_second(report), peak_operations_per_second);
}

void RunFilesHook::start(const Progress& progress) {
  if (!options_.speaker) return;
  const std::string metrics = options_.directory + "/metrics.jsonl", events = options_.directory + "/events.jsonl";
  const int64_t kept = progress.step > 0 ? progress.step : -1;  // a run that starts anew keeps nothing of step 0 either
  io::cut_after(metrics, kept);
  if (!options_.rolled_back) io::truncate_after(events, kept);
  metrics_.emplace(metrics);
  events_.emplace(events);
  if (options_.tensorboard)
    tensorboard_.emplace(options_.directory + "/tensorboard", progress.step > 0 ? progress.step + 1 : 0);
  telemetry_.emplace(io_, options_.directory + "/telemetry.h5", progress.step);
  event(progress.step > 0 || options_.rolled_back ? "resume" : "start",
        {{"step", progress.step}, {"updates", progress.updates}});
  for (const auto& [kind, fields] : noted_) event(kind, fields);
  noted_.clear();
}

Verdict RunFilesHook::after_step(const StepReport& report, const Verdict& verdict, const Progress&) {
  if (!options_.speaker) return {};
  write_metrics(report, verdict);
  write_telemetry(report);
  return {};
}

void RunFilesHook::write_metrics(const StepReport& report, const Verdict& verdict) {
  const double tokens_per_second = options_.throughput.tokens_per_second(report);
  io::Json line = {{"step", report.step},
                   {"updates", report.updates},
                   {"tokens", report.tokens_consumed},
                   {"loss", report.loss},
                   {"z_loss", report.z_loss},
                   {"gradient_norm", report.gradient_norm},
                   {"update_norm", report.update_norm},
                   {"lr", report.lr},
                   {"largest_logit", report.largest()},
                   {"tokens_per_second", tokens_per_second},
                   {"mfu_full", options_.throughput.mfu_full(report)},
                   {"mfu_causal", options_.throughput.mfu_causal(report)},
                   {"seconds_data", report.seconds.data},
                   {"seconds_forward_backward", report.seconds.forward + report.seconds.backward},
                   {"seconds_reduction", report.seconds.reduction},
                   {"seconds_update", report.seconds.update},
                   {"verdict", name_of(verdict.action)}};
  if (!report.logit_bound.empty()) line["bound_used"] = report.bound_used();
  metrics_->write(line);
  if (!tensorboard_) return;
  const std::array<io::Scalar, 8> values = {{{"train/loss", float(report.loss)},
                                             {"train/gradient_norm", float(report.gradient_norm)},
                                             {"train/lr", float(report.lr)},
                                             {"train/z_loss", float(report.z_loss)},
                                             {"attention/largest_logit", report.largest()},
                                             {"speed/tokens_per_second", float(tokens_per_second)},
                                             {"speed/mfu_full", float(options_.throughput.mfu_full(report))},
                                             {"speed/mfu_causal", float(options_.throughput.mfu_causal(report))}}};
  tensorboard_->write(report.step, values);
}

void RunFilesHook::telemetry(const std::string& name, int64_t step, int64_t layers, const std::vector<float>& values) {
  if (!telemetry_ || values.empty()) return;
  if (declared_.insert(name).second) telemetry_->declare(name, {uint64_t(layers), values.size() / uint64_t(layers)});
  telemetry_->append(name, step, std::span(values));
}

void RunFilesHook::telemetry(const std::string& name, int64_t step, const std::vector<uint64_t>& dims,
                             const std::vector<int64_t>& values) {
  if (!telemetry_) return;
  if (declared_.insert(name).second) telemetry_->declare(name, dims);
  telemetry_->append(name, step, std::span(values));
}

void RunFilesHook::write_telemetry(const StepReport& report) {
  for (const HeadStatistic& statistic : kHeadStatistics)
    telemetry(statistic.name, report.step, report.layers, report.*statistic.whole);
  try {
    io_.check();
  } catch (const Error& error) {
    throw in_mid_run(error);
  }
}

void RunFilesHook::event(const std::string& kind, const io::Json& fields) {
  io::Json line = {{"event", kind}};
  line.update(fields);
  events_->write(line);
}

void RunFilesHook::note(const std::string& kind, const io::Json& fields) {
  if (events_)
    event(kind, fields);
  else if (options_.speaker)
    noted_.emplace_back(kind, fields);
}

void RunFilesHook::scalars(int64_t step, std::span<const io::Scalar> scalars) {
  if (tensorboard_) tensorboard_->write(step, scalars);
}

void RunFilesHook::metrics_line(const io::Json& line) {
  if (metrics_) metrics_->write(line);
}

void RunFilesHook::flush() {
  if (telemetry_) telemetry_->flush();
}

void RunFilesHook::finish(const Progress&, const Ending&) {
  flush();
}

}  // namespace keel::train
