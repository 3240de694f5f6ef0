// Where a step's arrays go: telemetry.h5 in a run (run_files_hook.h), nowhere in a benchmark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace keel::train {

class TelemetryArrays {
 public:
  // [layers, values / layers], row-major; no values, no row.
  virtual void telemetry(const std::string& name, int64_t step, int64_t layers, const std::vector<float>& values) = 0;
  // Of whole numbers, with these dims.
  virtual void telemetry(const std::string& name, int64_t step, const std::vector<uint64_t>& dims,
                         const std::vector<int64_t>& values) = 0;

 protected:
  ~TelemetryArrays() = default;
};

}  // namespace keel::train
