// Records what a decoder knows about itself: into telemetry.h5, on telemetry steps, what framework/README.md lists
// beside the arrays of every model (train/run_files_hook.h), all reduced over the whole mesh; and into metrics.jsonl.
#pragma once

#include "framework/parallel/pieces.h"
#include "framework/train/head_statistics.h"
#include "framework/train/hook.h"
#include "framework/train/layer_statistics.h"
#include "framework/train/telemetry_arrays.h"
#include "models/decoder/decoder.h"

namespace keel::models {

class TelemetryHook : public train::Hook {
 public:
  // All outlive this.
  TelemetryHook(Decoder& decoder, parallel::Mesh& mesh, train::TelemetryArrays& arrays);

  train::Verdict judge(const train::StepReport& report) override;

 private:
  void record_places(const train::StepReport& report);
  void record_matrices(const train::StepReport& report);
  void record_stream(int64_t step);
  void record_parallel(int64_t step);
  // What was sampled of each layer, over the data axis.
  template <class T>
  void collect(std::vector<T>& whole, ConstTensor own, int64_t width);
  // How a weight of heads lies: elements of a head, this rank's heads, the model's; 1 and 1 where they share it.
  struct HeadRows {
    int64_t elements, own, all;
  };
  struct Gains {
    std::string name;                             // of the array of its gradient's norms
    std::vector<const nn::Parameter*> of_layers;  // null where a layer has none
    HeadRows rows;
  };
  template <class WeightOf>
  void add_gains(const char* name, WeightOf weight_of, const HeadRows& rows);
  void record_gradient(int64_t step, const Gains& gains);

  Decoder& decoder_;
  parallel::Mesh& mesh_;
  train::TelemetryArrays& arrays_;
  train::HeadStatistics heads_;
  train::LayerStatistics matrices_;
  std::vector<nn::ArenaRange> pieces_;
  int64_t layers_;
  bool rounded_;  // whether products read bf16
  std::vector<Gains> gains_;
  std::vector<float> whole_;
};

}  // namespace keel::models
