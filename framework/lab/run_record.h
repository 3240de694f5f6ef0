// What a run left in its folder, read back: metrics.jsonl, events.jsonl, telemetry.h5.
#pragma once

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "framework/io/io_thread.h"
#include "framework/io/jsonl.h"

namespace keel::lab {

struct StepRecord {
  int64_t step = 0;
  double loss = 0, gradient_norm = 0, lr = 0, largest_logit = 0, tokens_per_second = 0;
  double seconds = 0;  // of the step, without evaluation and saving
  // The largest share of its bound that a logit took; not a number without QK-Norm.
  double bound_used = std::numeric_limits<double>::quiet_NaN();
  bool accepted = false;  // the weights were updated
};

struct EvaluationRecord {
  int64_t step = 0;
  double loss = 0;           // nats per token
  double nats_per_byte = 0;  // 0 where unknown
};

// Where a head's largest logit stands: telemetry.h5's largest_logit_place. -1: nowhere.
struct PlaceRecord {
  int64_t source = -1, sample = -1, query = -1, key = -1;
  float logit = 0;  // |s| of that step
};

inline constexpr size_t kMostHeadRows = 160;  // of an array that is read; longer ones are reduced

// One array of telemetry.h5: [rows, layers, width] row-major. A row stands for `each` of the file's, by the largest of
// every head that is a number (of entropies: by the least).
struct HeadRecord {
  std::vector<int64_t> steps;  // the last of those that a row stands for
  uint64_t layers = 0, width = 0;
  std::vector<float> values;
  uint64_t each = 1;
  std::vector<float> last = {};  // the file's last row, where rows stand for several

  std::span<const float> row(size_t index) const {
    return std::span(values).subspan(index * layers * width, layers * width);
  }
  std::span<const float> last_row() const { return each > 1 ? std::span(last) : row(steps.size() - 1); }
};

// Whether the least of several values stands for all: of an array in which collapses count, not peaks.
bool keeps_least(const std::string& name);

struct RunRecord {
  std::string directory;
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
  std::vector<io::Json> events;
  std::map<std::string, HeadRecord> heads;  // by name: largest_logit, entropy, ...
  // Two of them are made of others: largest_logit_distance, how far before its query the key of the largest logit is,
  // and bound_used, largest_logit / logit_bound.
  std::vector<PlaceRecord> places;  // [L, H]: of the last telemetry step
  int64_t places_step = 0;

  // Null where telemetry.h5 has none.
  const HeadRecord* head(const std::string& name) const;
};

// Everything but heads, which are most of what a run leaves. An input error where the folder holds no run.
RunRecord read_steps(const std::string& directory);
// With heads, in memory that does not grow with the run; telemetry that is just being written is left out.
RunRecord read_run(io::IoThread& io, const std::string& directory);

// The largest logit of any head in the steps after this one; infinite where one was not a number.
double largest_logit(const RunRecord& run, int64_t after_step = 0);
// The largest share of its bound that any head's logit reached in any step; nothing where no head had a bound.
std::optional<double> bound_used(const RunRecord& run);

}  // namespace keel::lab
